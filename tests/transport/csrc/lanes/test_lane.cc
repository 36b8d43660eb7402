// The conformance suite of lanes: what every provider promises, over each of them.
#include <algorithm>
#include <cstring>
#include <set>

#include "lanes.h"

namespace hccl::test {
namespace {

// Around what is inline in shared memory (88), what tcp copies at once (a quarter of a slot) and
// reads ahead (4096), a slot.
const std::vector<size_t> sizes = {
    0, 1, 63, 64, 65, 87, 88, 89, 2047, 2048, 2049, 4095, 4096, 4097, slot_bytes - 1, slot_bytes};

// A test over each provider.
#define OVER_EVERY_PROVIDER(test)                  \
  void test(const Provider& provider);             \
  HCCL_TEST(test) {                                \
    for (const Provider& provider : providers()) { \
      std::printf("  %s\n", provider.name);        \
      test(provider);                              \
    }                                              \
  }                                                \
  void test(const Provider& provider)

OVER_EVERY_PROVIDER(every_size_arrives_whole) {
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  for (How how : {How::receive, How::lend}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto payload = payload_of(i, sizes[i]);
      lane->left->post_send(header_of(i, sizes[i]), payload.data());
      Patience patience;
      while (!inbox.take(i, sizes[i], how)) {
        lane->left->flush();
        patience.turn();
      }
      CHECK(lane->left->flushed());
    }
  }
  CHECK(lane->right->peek() == nullptr);
}

OVER_EVERY_PROVIDER(both_full_sides_come_free_again) {
  auto lane = provider.connect();
  Talker left(*lane->left, 3000, sizes), right(*lane->right, 3000, sizes);
  left.post();
  right.post();
  CHECK(!lane->left->flushed() && !lane->right->flushed());
  Patience patience;
  for (;;) {
    bool left_done = left.turn(), right_done = right.turn();
    if (left_done && right_done) break;
    patience.turn();
  }
}

OVER_EVERY_PROVIDER(two_threads_talk_at_once) {
  auto lane = provider.connect();
  auto talk = [](Lane& end) {
    Talker talker(end, 3000, sizes);
    Patience patience;
    while (!talker.turn()) patience.turn();
  };
  std::thread other([&] { talk(*lane->left); });
  talk(*lane->right);
  other.join();
}

OVER_EVERY_PROVIDER(a_detached_payload_may_change) {
  if (!provider.copies) return;
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  std::deque<std::vector<std::byte>> payloads;
  auto post = [&] {
    uint64_t i = payloads.size();
    payloads.push_back(payload_of(i, slot_bytes));
    return lane->left->post_send(header_of(i, slot_bytes), payloads.back().data());
  };
  while (lane->left->flushed()) post();
  post();
  // The last two at least wait: half-way on a stream, or for a slot in shared memory.
  uint64_t before = lane->left->completed();
  CHECK(before <= payloads.size() - 2);
  uint64_t detached = before;
  for (;; ++detached) {
    lane->left->detach();
    if (lane->left->completed() == detached) break;
    CHECK(lane->left->completed() == detached + 1);
    auto& payload = payloads[static_cast<size_t>(detached)];
    std::fill(payload.begin(), payload.end(), std::byte{0xee});
  }
  // One message of its own a lane can hold, and only a few.
  CHECK(detached > before && detached <= before + 4);
  CHECK(post() == payloads.size());
  Patience patience;
  for (uint64_t i = 0; i < payloads.size();) {
    lane->left->flush();
    if (inbox.take(i, slot_bytes, how_of(i))) ++i;
    patience.turn();
  }
  while (!lane->left->settled()) {
    lane->left->flush();
    lane->left->detach();
    patience.turn();
  }
  CHECK(lane->left->completed() == payloads.size());
  lane->left->detach();
  CHECK(lane->left->completed() == payloads.size());
}

// What the proof of a plan counts on: a side learns that all its messages were taken although it
// can release none of the other side's yet.
OVER_EVERY_PROVIDER(payloads_come_free_before_a_message_is_released) {
  if (!provider.copies) return;
  constexpr uint64_t num_messages = 70;
  for (How how : {How::receive, How::lend}) {
    auto lane = provider.connect();
    Inbox right(*lane->right), left(*lane->left);
    const std::vector<size_t> lengths = {slot_bytes, 300, slot_bytes / 4};
    auto length_of = [&](uint64_t i) { return lengths[i % lengths.size()]; };
    auto unreleased = payload_of(0, slot_bytes);
    lane->right->post_send(header_of(0, slot_bytes), unreleased.data());
    std::deque<std::vector<std::byte>> payloads;
    for (uint64_t i = 0; i < num_messages; ++i) {
      payloads.push_back(payload_of(i, length_of(i)));
      lane->left->post_send(header_of(i, length_of(i)), payloads.back().data());
    }
    Patience patience;
    for (uint64_t taken = 0; lane->left->completed() < num_messages; patience.turn()) {
      if (lane->left->peek() != nullptr && how == How::lend) lane->left->lend();
      lane->left->flush();
      lane->right->flush();
      if (taken < num_messages && right.take(taken, length_of(taken), how)) ++taken;
      if (taken == num_messages) lane->left->detach();
    }
    for (; !left.take(0, slot_bytes, how); patience.turn()) lane->right->flush();
  }
}

// A lane whose other end is the test's own socket.
struct RawLane {
  Statistics statistics;
  std::unique_ptr<TcpLane> lane;

  explicit RawLane(std::array<int, 2> ends) {
    TcpOptions options;
    options.slot_bytes = slot_bytes;
    std::vector<std::shared_ptr<Stream>> connection = {stream_on(ends[1])};
    lane = std::make_unique<TcpLane>(4, std::move(connection), options, statistics);
  }

  // The lane's message `number`, counted from 0, in the connection's frame `number`.
  static std::vector<std::byte> frame_of(uint64_t number, const Header& header,
                                         const std::vector<std::byte>& payload) {
    Frame frame;
    frame.serial = static_cast<uint32_t>(number);
    frame.sequence = number + 1;
    frame.header = header;
    std::vector<std::byte> bytes(sizeof frame);
    std::memcpy(bytes.data(), &frame, sizeof frame);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }
};

OVER_EVERY_PROVIDER(what_was_sent_before_closing_arrives) {
  if (!provider.notices_closing || !provider.copies) return;
  auto lane = provider.connect();
  Inbox inbox(*lane->right);
  std::vector<std::vector<std::byte>> sent;
  for (uint64_t i : {0, 1, 2}) {
    sent.push_back(payload_of(i, 5000));
    lane->left->post_send(header_of(i, 5000), sent.back().data());
  }
  Patience patience;
  for (; !lane->left->flushed(); patience.turn()) lane->left->flush();
  lane->left.reset();
  for (uint64_t i = 0; i < 3;) {
    if (inbox.take(i, 5000, how_of(i))) ++i;
    patience.turn();
  }
  CHECK(throws<LaneError>([&] {
    for (;;) {
      lane->right->peek();
      // A peer that has ended says nothing over RDMA: an end that waits asks, before it sleeps.
      Sleep sleep(Sleeper::caller);
      lane->right->prepare_sleep(sleep);
      patience.turn();
    }
  }));
  CHECK(throws<LaneError>([&] {
    auto payload = payload_of(0, slot_bytes);
    for (;;) {
      lane->right->post_send(header_of(0, slot_bytes), payload.data());
      patience.turn();
    }
  }));
}

HCCL_TEST(frames_may_come_byte_by_byte) {
  for (How how : {How::receive, How::lend}) {
    std::array<int, 2> ends = unix_sockets();
    RawLane raw(ends);
    Inbox inbox(*raw.lane);
    std::vector<std::byte> stream;
    const std::vector<size_t> few = {0, 1, 88, 300, 0, 5000};
    for (size_t i = 0; i < few.size(); ++i) {
      auto frame = raw.frame_of(i, header_of(i, few[i]), payload_of(i, few[i]));
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    uint64_t received = 0;
    for (std::byte byte : stream) {
      CHECK(::send(ends[0], &byte, 1, 0) == 1);
      while (received < few.size() && inbox.take(received, few[received], how)) ++received;
    }
    CHECK(received == few.size());
    ::close(ends[0]);
  }
}

HCCL_TEST(far_readers_get_the_same_bytes) {
  auto lane = shm_lane();
  Inbox inbox(*lane->right);
  for (uint64_t i = 0; i < 100; ++i) {
    for (int j = 0; j < 32; ++j) {
      lane->distances[0]->note(std::chrono::microseconds(i % 3 ? 100 : 0), slot_bytes);
    }
    CHECK(lane->distances[0]->is_far() == (i % 3 != 0));
    auto payload = payload_of(i, slot_bytes);
    lane->left->post_send(header_of(i, slot_bytes), payload.data());
    CHECK(inbox.take(i, slot_bytes, i % 2 ? How::receive : How::lend));
  }
}

HCCL_TEST(a_part_of_something_large_arrives_whole) {
  auto lane = shm_lane();
  auto payload = payload_of(0, slot_bytes);
  Header header = header_of(0, slot_bytes);
  header.size = 64 << 20;
  for (size_t offset : {0, 1, 18, 63}) {
    header.copy_mode = static_cast<CopyMode>(offset % 4);
    lane->left->post_send(header, payload.data());
    CHECK(lane->right->peek() != nullptr);
    std::vector<std::byte> got(slot_bytes + 64);
    CHECK(lane->right->receive(got.data() + offset));
    lane->right->release();
    CHECK(std::memcmp(got.data() + offset, payload.data(), slot_bytes) == 0);
    lane->left->flush();
  }
}

HCCL_TEST(distance_follows_what_writes_take) {
  using std::chrono::microseconds;
  constexpr microseconds fast{1}, slow{4};  // 8 KiB within a group of cores, and between two
  constexpr size_t size = 8192;
  Distance distance;
  CHECK(!distance.is_far());
  // Of one that lost its core meanwhile nothing follows.
  for (int i = 0; i < 1000; ++i) distance.note(i % 10 ? fast : microseconds(4000), size);
  CHECK(!distance.is_far());
  for (int i = 0; i < 6; ++i) distance.note(slow, size);
  CHECK(distance.is_far());
  // Where ranks share cores, every other one may be fast.
  for (int i = 0; i < 1000; ++i) distance.note(i % 2 ? fast : slow, size);
  CHECK(distance.is_far());
  for (int i = 0; i < 32; ++i) distance.note(fast, size);
  CHECK(!distance.is_far());
}

HCCL_TEST(long_payloads_pass_by_the_caches_where_cores_are_far) {
  constexpr size_t least = Distance::min_bytes;
  Distance distance;
  for (bool is_far : {false, true}) {
    for (int i = 0; i < 32; ++i) distance.note(std::chrono::microseconds(is_far ? 100 : 0), least);
    CHECK(distance.streams(least) == is_far && !distance.streams(least - 1));
  }
}

HCCL_TEST(far_cores_are_timed_again_after_a_while) {
  using std::chrono::milliseconds;
  constexpr std::chrono::microseconds fast{1}, slow{4};
  constexpr size_t size = 8192;
  Distance distance;
  for (int i = 0; i < 32; ++i) distance.note(slow, size);
  Distance::Clock::time_point now = Distance::Clock::now();
  distance.review(now);
  CHECK(!distance.is_far());
  distance.note(slow, size);
  CHECK(distance.is_far());
  distance.review(now + milliseconds(50));
  CHECK(distance.is_far());
  distance.review(now + milliseconds(150));
  for (int i = 0; i < 8; ++i) distance.note(fast, size);
  distance.note(slow, size);
  CHECK(!distance.is_far());
}

HCCL_TEST(an_assumed_distance_is_never_timed) {
  std::vector<std::byte> from(65536), to(from.size());
  for (bool is_far : {false, true}) {
    Distance distance;
    distance.assume(is_far);
    distance.review(Distance::Clock::now());
    for (int i = 0; i < 100; ++i) distance.copy_there(to.data(), from);
    CHECK(distance.num_timed() == 0 && distance.is_far() == is_far);
  }
}

HCCL_TEST(a_part_of_the_long_writes_is_timed) {
  constexpr unsigned num_writes = 6600;
  std::vector<std::byte> from(65536), to(from.size());
  auto num_timed = [&](size_t num_bytes) {
    Distance distance;
    for (unsigned i = 0; i < num_writes; ++i) {
      distance.copy_there(to.data(), std::span(from).first(num_bytes));
    }
    return distance.num_timed();
  };
  for (size_t num_bytes : {Distance::min_bytes, from.size()}) {
    unsigned num = num_timed(num_bytes);
    CHECK(num >= num_writes / 66 && num <= num_writes / 4, "%u", num);
  }
  CHECK(num_timed(Distance::min_bytes - 1) == 0);
}

HCCL_TEST(malformed_shared_memory_is_refused) {
  auto cell_of = [](Ends& lane) -> RingEntry& { return *lane.segments[0]->ring(1, 0); };
  struct {
    int slot;
    uint32_t length;
  } cases[] = {
      {-1, inline_bytes + 1}, {0, slot_bytes + 1}, {24, 1}, {1 << 30, 1}, {1, slot_bytes - 1023}};
  for (auto bad : cases) {
    auto lane = shm_lane();
    lane->left->post_send(header_of(0, 8), payload_of(0, 8).data());
    cell_of(*lane).slot = bad.slot;
    cell_of(*lane).header.length = bad.length;
    CHECK(throws<LaneError>([&] { lane->right->peek(); }));
  }
  auto lane = shm_lane();
  lane->segments[1]->consumed(0, 0).count.store(1);
  auto payload = payload_of(0, slot_bytes);
  CHECK(
      throws<LaneError>([&] { lane->left->post_send(header_of(0, slot_bytes), payload.data()); }));
}

HCCL_TEST(payloads_in_shared_memory_take_turns_through_all_of_it) {
  auto lane = shm_lane();
  auto place_of_next = [&](size_t length) {
    lane->left->post_send(header_of(0, length), payload_of(0, length).data());
    CHECK(lane->right->peek() != nullptr);
    const std::byte* place = lane->right->lend();
    CHECK(std::memcmp(place, payload_of(0, length).data(), length) == 0);
    lane->right->release();
    return place;
  };
  std::set<const std::byte*> places;
  for (int i = 0; i < 3 * SegmentShape::parts_of_slot; ++i) places.insert(place_of_next(100));
  CHECK(places.size() == 3 * SegmentShape::parts_of_slot);
  CHECK(places.contains(place_of_next(slot_bytes / 2)));
  CHECK(places.contains(place_of_next(slot_bytes)));
}

HCCL_TEST(slots_that_are_not_in_turn_serve_while_the_others_wait_for_readers) {
  constexpr int num_slots = SegmentShape::slots_in_turn + 3;
  auto lane = shm_lane_with_slots(slot_bytes, num_slots);
  const std::byte* first = nullptr;  // where the reader maps the slots
  auto send = [&](int i) {
    auto payload = payload_of(static_cast<uint64_t>(i), slot_bytes);
    lane->left->post_send(header_of(0, slot_bytes), payload.data());
  };
  auto take = [&](int i) {
    CHECK(lane->right->peek() != nullptr);
    const std::byte* place = lane->right->lend();
    CHECK(std::memcmp(place, payload_of(static_cast<uint64_t>(i), slot_bytes).data(), slot_bytes) ==
          0);
    lane->right->release();
    if (first == nullptr) first = place;
    return static_cast<int>(place - first) / static_cast<int>(slot_bytes);
  };
  for (int round = 0; round < 3; ++round) {
    std::set<int> slots;
    for (int i = 0; i < num_slots; ++i) {
      send(i);
      CHECK(lane->left->flushed());
    }
    for (int i = 0; i < num_slots; ++i) {
      int slot = take(i);
      CHECK((slot < SegmentShape::slots_in_turn) == (i < SegmentShape::slots_in_turn));
      slots.insert(slot);
    }
    CHECK(slots.size() == num_slots);
  }
  for (int i = 0; i < 2 * num_slots; ++i) {
    send(i);
    CHECK(take(i) < SegmentShape::slots_in_turn);
  }
}

HCCL_TEST(a_peeked_message_in_shared_memory_stays_what_it_was) {
  auto lane = shm_lane();
  lane->left->post_send(header_of(0, 8), payload_of(0, 8).data());
  CHECK(lane->right->peek()->length == 8);
  RingEntry& entry = *lane->segments[0]->ring(1, 0);
  entry.slot = 1 << 30;
  entry.header.length = 1 << 30;
  entry.sequence.store(77);
  CHECK(lane->right->peek()->length == 8);
  std::byte got[8];
  CHECK(lane->right->receive(got));
  CHECK(std::memcmp(got, payload_of(0, 8).data(), 8) == 0);
  lane->right->release();
  CHECK(lane->right->peek() == nullptr);
}

}  // namespace
}  // namespace hccl::test
