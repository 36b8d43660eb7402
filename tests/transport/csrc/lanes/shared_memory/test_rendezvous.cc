// Messages in registered memory over shared memory: announced, read where they lie, replied to.
#include <cstring>

#include "lanes.h"

namespace hccl::test {
namespace {

constexpr size_t num_bytes = 32768;
constexpr uint16_t always_copied = 0xffff;

struct Pair {
  std::unique_ptr<Ends> ends = shm_lane_with_slots(2 * num_bytes);
  std::shared_ptr<Arena> arenas[2] = {Arena::create(size_t{4} << 20),
                                      Arena::create(size_t{4} << 20)};
  std::byte* memory = arenas[0]->allocate(num_bytes);
  ShmLane& left = static_cast<ShmLane&>(*ends->left);
  ShmLane& right = static_cast<ShmLane&>(*ends->right);

  Pair() {
    left.set_arenas(arenas[0], arenas[1]->window());
    right.set_arenas(arenas[1], arenas[0]->window());
    std::memset(memory, 1, num_bytes);
  }
  uint64_t send(Lane& lane, const std::byte* payload, uint16_t kind = 0) {
    bool asks = kind != 0 && kind != always_copied;
    return lane.post_send({.length = num_bytes, .kind = kind, .wants_reply = asks}, payload);
  }
};

HCCL_TEST(an_announced_payload_is_read_where_it_lies) {
  Pair pair;
  uint64_t number = pair.send(pair.left, pair.memory);
  CHECK(pair.left.flushed() && !pair.left.settled() && pair.left.completed() < number);
  CHECK(pair.right.peek() != nullptr && pair.right.lend() == pair.memory);
  pair.right.release();
  CHECK(pair.left.flush() && pair.left.settled() && pair.left.completed() == number);
  CHECK(pair.ends->statistics.announced.value() == 2);
}

HCCL_TEST(messages_complete_in_the_order_posted) {
  Pair pair;
  std::vector<std::byte> plain(num_bytes);
  uint64_t first = pair.send(pair.left, pair.memory), second = pair.send(pair.left, plain.data());
  CHECK(second == first + 1 && pair.left.completed() < first);
  for (int i = 0; i < 2; ++i) {
    CHECK(pair.right.peek() != nullptr);
    pair.right.release();
  }
  CHECK(pair.left.flush() && pair.left.completed() == second);
}

HCCL_TEST(a_source_that_will_be_overwritten_is_copied) {
  Pair pair;
  uint64_t number = pair.send(pair.left, pair.memory, always_copied);
  CHECK(pair.left.settled() && pair.left.completed() == number);
  CHECK(pair.right.peek() != nullptr && pair.right.lend() != pair.memory);
}

HCCL_TEST(a_reply_is_written_to_the_source) {
  Pair pair;
  std::vector<std::byte> other(num_bytes, std::byte{5}), answer(num_bytes, std::byte{7});
  pair.send(pair.left, pair.memory, 2);  // the second message from now on
  pair.send(pair.right, other.data());
  CHECK(pair.right.peek() != nullptr);
  pair.right.release();
  pair.send(pair.right, answer.data());
  CHECK(pair.memory[0] == std::byte{7} && pair.memory[num_bytes - 1] == std::byte{7});
  std::vector<std::byte> received(num_bytes);
  CHECK(pair.left.peek() != nullptr && pair.left.receive(received.data()) && received == other);
  pair.left.release();
  CHECK(pair.left.peek() != nullptr && pair.left.lend() == pair.memory);
  CHECK(pair.left.receive(pair.memory));
  pair.left.release();
}

HCCL_TEST(memory_of_a_failed_call_is_not_used) {
  Pair pair;
  pair.send(pair.left, pair.memory, 1);
  CHECK(pair.right.peek() != nullptr);
  pair.ends->segments[0]->withdraw();
  CHECK(throws<LaneError>([&] { pair.right.release(); }));
}

HCCL_TEST(memory_that_a_peer_may_still_write_is_never_allocated_again) {
  Pair pair;
  pair.send(pair.left, pair.memory);
  pair.left.abandon();
  CHECK(!pair.arenas[0]->is_retired(pair.memory));
  pair.send(pair.left, pair.memory, 1);
  pair.left.abandon();
  CHECK(pair.arenas[0]->is_retired(pair.memory));
}

HCCL_TEST(without_the_peers_mapping_payloads_are_copied) {
  Pair pair;
  std::unique_ptr<Ends> ends = shm_lane_with_slots(2 * num_bytes);
  static_cast<ShmLane&>(*ends->left).set_arenas(pair.arenas[0], nullptr);
  pair.send(*ends->left, pair.memory);
  CHECK(ends->left->settled());
}

HCCL_TEST(an_announcement_outside_of_registered_memory_is_rejected) {
  for (int32_t place : {int32_t{announced}, int32_t{written}, -4}) {
    Pair pair;
    pair.send(pair.left, pair.memory);
    RingEntry& entry = pair.ends->segments[0]->ring(1, 0)[0];
    entry.slot = place;
    Announcement forged{pair.arenas[0]->num_bytes() - 1, 0};
    std::memcpy(entry.payload, &forged, sizeof forged);
    CHECK(throws<LaneError>([&] { pair.right.peek(); }));
  }
}

}  // namespace
}  // namespace hccl::test
