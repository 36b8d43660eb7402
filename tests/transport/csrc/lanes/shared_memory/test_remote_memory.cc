// Messages that stay in ordinary memory of the sender until the receiver has read them there.
#include "lanes/shared_memory/remote_memory.h"

#include <cstring>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t num_bytes = ReadingCost::sample_bytes;
constexpr uint16_t always_copied = 0xffff;

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane_with_slots(num_bytes);
  std::vector<std::byte> source = payload_of(1, num_bytes), destination = payload_of(2, num_bytes);
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);

  explicit Pair(bool cost_is_low = true) {
    ends->outboxes[0]->reading_cost().assume(cost_is_low);
    right.read_from(getpid(), false);
  }
  Header header(uint16_t kind = 0) const {
    Header made;
    made.length = num_bytes;
    made.size = 16 << 20;
    made.kind = kind;
    made.is_only_moved = 1;
    return made;
  }
  uint64_t send(uint16_t kind = 0) { return left.post_send(header(kind), source.data()); }
  uint64_t num_read() const { return ends->statistics.single_copies.value(); }
};

HCCL_TEST(only_the_process_that_owns_the_segment_is_read) {
  auto mine = Segment::create({2});
  CHECK(RemoteMemory::open(getpid(), *mine));
  CHECK(!RemoteMemory::open(getppid(), *mine));
  CHECK(!RemoteMemory::open(0, *mine));
  auto forged = Segment::create({2});
  forged->header().owner_address = reinterpret_cast<uint64_t>(&mine->header().sleepers);
  CHECK(!RemoteMemory::open(getpid(), *forged));
}

HCCL_TEST(a_payload_is_the_senders_again_once_it_was_read) {
  Pair pair;
  uint64_t number = pair.send();
  CHECK(pair.left.flushed() && !pair.left.settled() && pair.left.completed() < number);
  CHECK(pair.right.peek() != nullptr && pair.right.receive(pair.destination.data()));
  CHECK(pair.left.completed() < number);
  pair.right.release();
  CHECK(pair.destination == pair.source && pair.num_read() == 1);
  CHECK(pair.left.flush() && pair.left.settled() && pair.left.completed() == number);
}

HCCL_TEST(for_several_readers_it_is_copied_into_one_slot) {
  Pair pair;
  Lane* lanes[] = {&pair.left};
  CHECK(pair.left.post_send_to_all(lanes, pair.header(), pair.source.data()) == Lane::Shared::posted);
  CHECK(pair.left.settled());
}

HCCL_TEST(what_had_better_be_copied_is) {
  auto is_copied = [](Pair& pair, const Header& header) {
    pair.left.post_send(header, pair.source.data());
    return pair.left.settled();
  };
  Pair overwritten, reduced, small, slow(false), unread;
  CHECK(is_copied(overwritten, overwritten.header(always_copied)));
  Header header = reduced.header();
  header.is_only_moved = 0;  // its receiver would have to copy it all the same
  CHECK(is_copied(reduced, header));
  header = small.header();
  header.size = header.length;
  CHECK(is_copied(small, header));
  CHECK(is_copied(slow, slow.header()));
  unread.ends = shm_lane_with_slots(num_bytes);
  unread.ends->outboxes[0]->reading_cost().assume(true);
  CHECK(unread.ends->left->post_send(unread.header(), unread.source.data()) == 1);
  CHECK(unread.ends->left->settled());
}

HCCL_TEST(two_ranks_with_a_core_each_copy_what_only_one_sends) {
  for (bool is_one_way : {false, true}) {
    Pair pair;
    pair.left.read_from(getpid(), true);
    Header header = pair.header();
    header.size = header.length;
    header.is_one_way = is_one_way;
    pair.left.post_send(header, pair.source.data());
    CHECK(pair.left.settled() == is_one_way);
  }
}

HCCL_TEST(what_cannot_be_read_is_no_message) {
  Pair reduced;
  reduced.send();
  CHECK(reduced.right.peek() != nullptr);
  CHECK(throws<LaneError>([&] { reduced.right.lend(); }));

  Pair failed;
  failed.send();
  CHECK(failed.right.peek() != nullptr && failed.right.receive(failed.destination.data()));
  failed.ends->segments[0]->withdraw();
  CHECK(throws<LaneError>([&] { failed.right.release(); }));

  Pair forged;
  forged.send();
  Announcement nowhere{16, 0};
  std::memcpy(forged.ends->segments[0]->ring(1, 0)[0].payload, &nowhere, sizeof nowhere);
  CHECK(forged.right.peek() != nullptr);
  CHECK(throws<LaneError>([&] { forged.right.receive(forged.destination.data()); }));

  Pair unable;
  unable.send();
  std::unique_ptr<Ends> other = shm_lane_with_slots(num_bytes);
  Cell& cell = other->segments[0]->ring(1, 0)[0];
  cell.slot = remote;
  cell.header = unable.header();
  cell.sequence = 1;
  CHECK(throws<LaneError>([&] { other->right->peek(); }));
}

// Whatever is found: the memory is not changed, and it is measured once.
HCCL_TEST(the_cost_of_reading_is_measured_where_it_is_asked) {
  ReadingCost cost;
  std::vector<std::byte> memory = payload_of(4, num_bytes), before = memory;
  bool is_low = cost.is_low(memory.data());
  CHECK(cost.is_low(memory.data()) == is_low && memory == before);
}

}  // namespace
}  // namespace hccl::test
