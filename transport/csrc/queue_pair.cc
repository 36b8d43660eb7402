#include "queue_pair.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

constexpr size_t max_gone = 1024;

}  // namespace

QueuePair::QueuePair(int peer, size_t slot_bytes, Statistics& statistics)
    : slot_bytes_(slot_bytes), statistics_(statistics), peer_(peer) {}

uint64_t QueuePair::post_send(const Header& header, const std::byte* payload) {
  uint64_t number = completed_ + (queue_.size() - head_) + (detached_ ? 0 : 1);
  if (flushed() && push(header, payload, offset_)) {
    offset_ = 0;
    return ++completed_;
  }
  statistics_.stalls.add(1);
  queue_.push_back({header, payload});
  return number;
}

bool QueuePair::flush() {
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

void QueuePair::pop() {
  if (!detached_) ++completed_;
  detached_ = false;
  offset_ = 0;
  // Whatever left is forgotten, also if the sender is always ahead and the queue never empties.
  if (++head_ == queue_.size() || head_ == max_gone) {
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
}

void QueuePair::detach() {
  if (flushed() || detached_) return;
  Posted& front = queue_[head_];
  spare_.resize(slot_bytes_);
  std::memcpy(spare_.data(), front.payload, front.header.length);
  front.payload = spare_.data();
  detached_ = true;
  ++completed_;
}

bool QueuePair::post_send_to_all(std::span<QueuePair* const>, const Header&, const std::byte*) {
  return false;
}

void Backlog::note(QueuePair& lane) {
  if (lane.flushed()) return;
  if (std::find(lanes_.begin(), lanes_.end(), &lane) == lanes_.end()) lanes_.push_back(&lane);
}

bool Backlog::flush() {
  bool moved = false;
  for (size_t i = 0; i < lanes_.size();) {
    moved |= lanes_[i]->flush();
    if (lanes_[i]->flushed()) {
      lanes_[i] = lanes_.back();
      lanes_.pop_back();
    } else {
      ++i;
    }
  }
  return moved;
}

}  // namespace hccl
