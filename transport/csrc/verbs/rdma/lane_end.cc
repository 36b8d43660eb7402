#include "verbs/rdma/lane_end.h"

#include <algorithm>

namespace hccl {

namespace {

// Less than every device offers; larger messages gain nothing.
constexpr size_t inline_bytes = 128;

}  // namespace

RdmaLaneEnd::RdmaLaneEnd(Registrations devices, size_t num_pairs, size_t slot_bytes,
                         const Patience& patience)
    : registrations_(std::move(devices)) {
  QueuePairAttributes attributes = LaneSlots::attributes();
  attributes.max_inline = inline_bytes;
  // An unsignaled request keeps its place until a later one completes.
  attributes.max_send_wr *= 2;
  attributes.timeout = patience.timeout;
  attributes.retry_count = patience.retry_count;
  std::vector<LaneSlots::Pairs> paths;
  for (const auto& device : registrations_) {
    LaneSlots::Pairs& path = paths.emplace_back();
    for (size_t i = 0; i < num_pairs; ++i) {
      pairs_.push_back(
          std::make_shared<RdmaQueuePair>(device->domain(), nullptr, nullptr, attributes));
      pairs_.back()->modify(QueuePairState::init);
      path.push_back(pairs_.back());
    }
  }
  slots_ = std::make_unique<LaneSlots>(std::move(paths), slot_bytes);
}

void RdmaLaneEnd::keep(size_t num_devices) {
  size_t num_pairs = pairs_.size() / registrations_.size();
  pairs_.resize(std::min(pairs_.size(), num_devices * num_pairs));
  slots_->keep(num_devices);
}

}  // namespace hccl
