#include "lanes/lane.h"

#include <algorithm>
#include <cstring>

namespace hccl {

uint64_t QueuedLane::post_send(const Header& header, const std::byte* payload) {
  if (flushed() && push(header, payload)) return ++completed_;
  device_.stalls.add(1);
  queue_.push_back({header, payload, num_released()});
  return completed_ + queue_.size() - (detached_ ? 1 : 0);
}

bool QueuedLane::flush() {
  bool moved = false;
  while (!queue_.empty() && push(queue_.front().header, queue_.front().payload)) {
    if (!detached_) ++completed_;
    detached_ = false;
    queue_.pop_front();
    moved = true;
  }
  return moved;
}

void QueuedLane::detach() {
  if (flushed() || detached_) return;
  Posted& front = queue_.front();
  spare_.resize(std::max<size_t>(slot_bytes_, front.header.length));
  std::memcpy(spare_.data(), front.payload, front.header.length);
  front.payload = spare_.data();
  detached_ = true;
  ++completed_;
}

bool abandon_all(const std::vector<std::unique_ptr<Lane>>& lanes) {
  bool all = true;
  for (const auto& lane : lanes) {
    if (lane) all &= lane->abandon();
  }
  return all;
}

void Backlog::note(Lane& lane) {
  if (lane.settled()) return;
  if (std::find(lanes_.begin(), lanes_.end(), &lane) == lanes_.end()) lanes_.push_back(&lane);
}

bool Backlog::flush() {
  bool moved = false;
  for (Lane* lane : lanes_) moved |= lane->flush();
  std::erase_if(lanes_, [](const Lane* lane) { return lane->settled(); });
  return moved;
}

bool Backlog::settle() {
  bool copied = false;
  for (Lane* lane : lanes_) {
    while (lane->flushed() && !lane->settled()) {
      uint64_t before = lane->completed();
      lane->detach();
      if (lane->completed() == before) break;
      copied = true;
    }
  }
  std::erase_if(lanes_, [](const Lane* lane) { return lane->settled(); });
  return copied;
}

}  // namespace hccl
