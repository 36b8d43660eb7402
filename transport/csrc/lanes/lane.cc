#include "lanes/lane.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

constexpr size_t max_gone = 1024;

}  // namespace

uint64_t QueuedLane::post_send(const Header& header, const std::byte* payload) {
  uint64_t number = completed_ + (queue_.size() - head_) + (detached_ ? 0 : 1);
  if (flushed() && push(header, payload, offset_)) {
    offset_ = 0;
    return ++completed_;
  }
  device_.stalls.add(1);
  queue_.push_back({header, payload});
  return number;
}

bool QueuedLane::flush() {
  bool moved = false;
  while (!flushed()) {
    Posted& front = queue_[head_];
    size_t before = offset_;
    bool sent = push(front.header, front.payload, offset_);
    moved |= sent || offset_ != before;
    if (!sent) break;
    pop();
  }
  return moved;
}

void QueuedLane::pop() {
  if (!detached_) ++completed_;
  detached_ = false;
  offset_ = 0;
  // Whatever left is forgotten, also if the sender is always ahead and the queue never empties.
  if (++head_ == queue_.size() || head_ == max_gone) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
}

void QueuedLane::detach() {
  if (flushed() || detached_) return;
  Posted& front = queue_[head_];
  spare_.resize(slot_bytes_);
  std::memcpy(spare_.data(), front.payload, front.header.length);
  front.payload = spare_.data();
  detached_ = true;
  ++completed_;
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
