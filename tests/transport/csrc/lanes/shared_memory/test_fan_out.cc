// One payload for several lanes, in one slot that all their readers use.
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

HCCL_TEST(without_a_slot_nothing_happens_until_readers_make_room) {
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

}  // namespace
}  // namespace hccl::test
