#include "verbs/rdma/lane_end.h"

namespace hccl {

namespace {

// Less than every device offers; a larger message gains nothing from it.
constexpr size_t inline_bytes = 128;

}  // namespace

RdmaLaneEnd::RdmaLaneEnd(std::shared_ptr<RdmaRegistrations> registrations, size_t num_pairs,
                         size_t slot_bytes, const Patience& patience)
    : registrations_(std::move(registrations)) {
  QueuePairAttributes attributes = LaneSlots::attributes();
  attributes.max_inline = inline_bytes;
  // What was not signaled keeps its place until a later request completes.
  attributes.max_send_wr *= 2;
  attributes.timeout = patience.timeout;
  attributes.retry_count = patience.retry_count;
  for (size_t i = 0; i < num_pairs; ++i) {
    pairs_.push_back(
        std::make_shared<RdmaQueuePair>(registrations_->domain(), nullptr, nullptr, attributes));
    pairs_.back()->modify(QueuePairState::init);
  }
  std::vector<std::shared_ptr<QueuePairFace>> faces(pairs_.begin(), pairs_.end());
  slots_ = std::make_unique<LaneSlots>(std::move(faces), slot_bytes);
}

}  // namespace hccl
