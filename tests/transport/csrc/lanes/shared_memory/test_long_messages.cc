// Messages that are longer than a slot: in several of them, or where their payload lies.
#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t long_bytes =
    7 * slot_bytes + 3;  // more than twice what all slots of the sender hold

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane();
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);
  std::vector<std::byte> payload = payload_of(0, long_bytes), destination{long_bytes};

  Pair() {
    left.take_long_messages();
    right.take_long_messages();
  }
  void send() { left.post_send(header_of(0, long_bytes), payload.data()); }
  // Whether the message is there.
  bool receive() { return right.peek() != nullptr && right.receive(destination.data()); }
  RingEntry& entry(int i) { return ends->segments[0]->ring(1, 0)[i]; }
};

HCCL_TEST(among_others_they_arrive_whole) {
  const std::vector<size_t> sizes = {
      0, 1, 88, slot_bytes, slot_bytes + 1, 2 * slot_bytes, long_bytes, 2047, 3 * slot_bytes - 1};
  Pair pair;
  Talker left(pair.left, 500, sizes), right(pair.right, 500, sizes);
  Patience patience;
  for (;;) {
    bool left_done = left.turn(), right_done = right.turn();
    if (left_done && right_done) break;
    patience.turn();
  }
}

HCCL_TEST(between_two_threads_too) {
  const std::vector<size_t> sizes = {slot_bytes, long_bytes, 4, 2 * slot_bytes};
  Pair pair;
  auto talk = [&](Lane& end) {
    Talker talker(end, 500, sizes, 2);
    Patience patience;
    while (!talker.turn()) patience.turn();
  };
  std::thread other(talk, std::ref(pair.right));
  talk(pair.left);
  other.join();
}

HCCL_TEST(the_first_of_it_is_a_message_that_has_not_arrived) {
  Pair pair;
  pair.send();
  CHECK(!pair.left.flushed() && pair.left.completed() == 0);
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(!pair.receive());
    CHECK(pair.right.peek()->length == long_bytes);
    CHECK(!pair.receive());  // nothing came since
    CHECK(pair.left.flush());
  }
  CHECK(pair.left.flushed() && pair.receive() && pair.destination == pair.payload);
  CHECK(pair.right.peek() != nullptr);
  pair.right.release();
  CHECK(pair.right.peek() == nullptr);
  CHECK(pair.ends->statistics.shm.messages.value() == 1);
  CHECK(pair.ends->statistics.shm.bytes.value() == long_bytes);
}

HCCL_TEST(half_sent_it_is_the_callers_again_when_copied) {
  Pair pair;
  auto expected = pair.payload;
  pair.send();
  CHECK(!pair.receive());
  pair.left.detach();
  CHECK(pair.left.completed() == 1);
  std::fill(pair.payload.begin(), pair.payload.end(), std::byte{0xee});
  Patience patience;
  while (!pair.receive()) {
    pair.left.flush();
    patience.turn();
  }
  CHECK(pair.destination == expected && pair.left.completed() == 1);
}

HCCL_TEST(a_full_ring_is_waited_for) {
  Pair pair;
  Inbox inbox(pair.right);
  std::vector<std::byte> small = payload_of(0, 4);
  for (int i = 0; i < ring_entries - 1; ++i) pair.left.post_send(header_of(0, 4), small.data());
  pair.send();  // one part finds an entry
  CHECK(!pair.left.flush());
  for (int i = 0; i < ring_entries - 1; ++i) CHECK(inbox.take(0, 4, How::lend));
  Patience patience;
  while (!inbox.take(0, long_bytes, How::receive)) {
    pair.left.flush();
    patience.turn();
  }
}

HCCL_TEST(where_the_peer_may_read_it_lies_in_one_place) {
  Pair pair;
  pair.right.read_from(getpid());
  pair.payload = payload_of(0, max_long_bytes);
  pair.destination.resize(max_long_bytes);
  Header header = header_of(0, max_long_bytes);
  header.size = 16 << 20;
  header.copy_mode = CopyMode::single;
  uint64_t number = pair.left.post_send(header, pair.payload.data());
  CHECK(pair.left.flushed() && pair.left.completed() < number);
  CHECK(pair.receive() && pair.destination == pair.payload);
  pair.right.release();
  CHECK(pair.left.flush() && pair.left.completed() == number);
  CHECK(pair.ends->statistics.single_copies.value() == 1);
}

HCCL_TEST(what_is_malformed_is_no_message) {
  Pair lent;
  lent.send();
  CHECK(lent.right.peek() != nullptr);
  CHECK(throws<LaneError>([&] { lent.right.lend(); }));

  auto ends = shm_lane();  // takes none
  RingEntry& entry = ends->segments[0]->ring(1, 0)[0];
  entry.slot = 0;
  entry.header = header_of(0, slot_bytes + 1);
  entry.sequence = 1;
  CHECK(throws<LaneError>([&] { ends->right->peek(); }));
  entry.header.length = max_long_bytes + 1;
  static_cast<ShmLane&>(*ends->right).take_long_messages();
  CHECK(throws<LaneError>([&] { ends->right->peek(); }));

  void (*const forgeries[])(RingEntry&) = {
      [](RingEntry& c) { c.slot = 24; },
      [](RingEntry& c) { c.slot = 1; },  // too little of the slot follows
      [](RingEntry& c) { c.slot = in_entry; },
      [](RingEntry& c) { c.slot = announced; },
      [](RingEntry& c) { c.header.length = slot_bytes; },
      [](RingEntry& c) { c.header.length = max_long_bytes; },
  };
  for (auto forge : forgeries) {
    Pair forged;
    forged.send();
    forge(forged.entry(1));
    CHECK(throws<LaneError>([&] { forged.receive(); }));
  }
}

HCCL_TEST(others_are_not_taken_for_their_parts) {
  Pair pair;
  Inbox inbox(pair.right);
  pair.send();
  auto next = payload_of(1, 100);
  pair.left.post_send(header_of(1, 100), next.data());
  Patience patience;
  while (!inbox.take(0, long_bytes, How::receive)) {
    pair.left.flush();
    patience.turn();
  }
  pair.left.flush();
  CHECK(inbox.take(1, 100, How::lend) && pair.left.flushed());
}

}  // namespace
}  // namespace hccl::test
