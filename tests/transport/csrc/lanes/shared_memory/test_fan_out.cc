// One payload for several lanes, in one slot that all their readers use.
#include <chrono>

#include "lanes.h"

namespace hccl::test {
namespace {

using Shared = Lane::Shared;

struct FanOut {
  std::unique_ptr<Ends> ends = shm_lane();
  std::vector<std::byte> payload = payload_of(1, slot_bytes);

  Shared send() {
    Lane* lanes[] = {ends->left.get()};
    return ends->left->post_send_to_all(lanes, header_of(0, slot_bytes), payload.data());
  }
  // A slot stays free for the lane's own messages.
  void fill() {
    CHECK(send() == Shared::posted && send() == Shared::posted && !ends->left->is_drained());
  }
  void receive() {
    CHECK(ends->right->peek() != nullptr);
    ends->right->release();
  }
};

HCCL_TEST(without_a_slot_it_waits_for_the_readers) {
  FanOut one;
  one.fill();
  CHECK(one.send() == Shared::later);
  one.receive();
  CHECK(one.send() == Shared::posted);
  CHECK(one.send() == Shared::later);
  one.receive();
  one.receive();
  CHECK(one.send() == Shared::posted);
  one.receive();
  static_cast<ShmLane&>(*one.ends->left).reclaim();
  CHECK(one.ends->left->is_drained());
}

// A reader may wait for what another lane of the same message brings to somebody else.
HCCL_TEST(it_does_not_wait_for_ever) {
  FanOut one;
  one.fill();
  CHECK(one.send() == Shared::later);
  auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Shared last = Shared::later;
  while (last == Shared::later && std::chrono::steady_clock::now() < limit) last = one.send();
  CHECK(last == Shared::apart);
  one.receive();
  CHECK(one.send() == Shared::posted && one.send() == Shared::later);
}

}  // namespace
}  // namespace hccl::test
