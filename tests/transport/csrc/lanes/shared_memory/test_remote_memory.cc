// Messages that stay in ordinary memory of the sender until the receiver has read them there.
#include "lanes/shared_memory/remote_memory.h"

#include <cstring>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t num_bytes = 65536;
constexpr uint16_t always_copied = 0xffff;

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane_with_slots(num_bytes);
  std::vector<std::byte> source = payload_of(1, num_bytes), destination = payload_of(2, num_bytes);
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);

  Pair() { right.read_from(getpid()); }
  Header header(uint16_t kind = 0) const {
    return {.size = 16 << 20, .length = num_bytes, .kind = kind, .copy_mode = CopyMode::single};
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

HCCL_TEST(each_of_several_readers_reads_it) {
  Pair pair;
  Lane* lanes[] = {&pair.left};
  Header header = pair.header();
  CHECK(pair.left.post_send_to_all(lanes, header, pair.source.data()) == Lane::Shared::apart);
  header.copy_mode = CopyMode::cached;
  CHECK(pair.left.post_send_to_all(lanes, header, pair.source.data()) == Lane::Shared::posted);
  CHECK(pair.left.settled());
}

HCCL_TEST(what_had_better_be_copied_is) {
  auto is_copied = [](Pair& pair, const Header& header) {
    pair.left.post_send(header, pair.source.data());
    return pair.left.settled();
  };
  Pair overwritten, cached, small, unread;
  CHECK(is_copied(overwritten, overwritten.header(always_copied)));
  Header header = cached.header();
  header.copy_mode = CopyMode::cached;
  CHECK(is_copied(cached, header));
  header = small.header();
  header.length = 4096;
  CHECK(is_copied(small, header));
  unread.ends = shm_lane_with_slots(num_bytes);
  CHECK(unread.ends->left->post_send(unread.header(), unread.source.data()) == 1);
  CHECK(unread.ends->left->settled());
}

HCCL_TEST(what_is_reduced_does_not_stay_in_ordinary_memory) {
  Pair pair;
  pair.send();
  CHECK(pair.right.peek() != nullptr);
  CHECK(throws<LaneError>([&] { pair.right.lend(); }));
}

HCCL_TEST(what_cannot_be_read_is_no_message) {
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
  RingEntry& entry = other->segments[0]->ring(1, 0)[0];
  entry.slot = remote;
  entry.header = unable.header();
  entry.sequence = 1;
  CHECK(throws<LaneError>([&] { other->right->peek(); }));
}

}  // namespace
}  // namespace hccl::test
