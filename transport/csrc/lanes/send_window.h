// The messages of a lane that were posted and not acknowledged yet, in order.
//
// A small payload is copied when it is posted, so its owner may reuse it at once. A large one stays
// borrowed until it is acknowledged, or until detach() copies it. Both kinds of copy are bounded.
#pragma once

#include <algorithm>
#include <deque>

#include "base/copy.h"
#include "lanes/path.h"

namespace hccl {

struct Outgoing {
  static constexpr int no_path = -1;

  Header header;
  const std::byte* payload = nullptr;
  int path = no_path;     // the connection that carries it, or carried it and may have delivered it
  bool was_sent = false;  // sent at least once, perhaps on a lost connection
  bool detached = false;  // `copy` came from the pool
  PayloadBuffer copy;     // once the payload is not borrowed any more
};

class SendWindow {
 public:
  static constexpr size_t max_detached = 4;
  static constexpr size_t num_small = 8;  // how many of the largest small payloads may wait
  // The peer acknowledges at the latest after taking this many small messages,
  static constexpr size_t num_small_per_ack = num_small / 2;
  // or this many larger ones.
  static constexpr size_t num_large_per_ack = max_detached / 2;

  SendWindow(size_t slot_bytes, BufferPool& pool)
      : small_bytes_(std::min<size_t>(16384, slot_bytes / 4)), pool_(pool) {}

  // Returns the message's number: 1 for the first, then counting up.
  uint64_t post(const Header& header, const std::byte* payload) {
    Outgoing& entry = entries_.emplace_back();
    entry.header = header;
    entry.payload = payload;
    return posted();
  }
  Outgoing& at(uint64_t number) { return entries_[number - acknowledged_ - 1]; }
  const Outgoing& at(uint64_t number) const { return entries_[number - acknowledged_ - 1]; }

  // Copies the payload if it is small and there is room.
  void keep(uint64_t number) {
    if (number > acknowledged_) keep(at(number), num_small);
  }

  // Copies the oldest payload that is borrowed. There is room for it if the peer has taken all
  // before it, acknowledged or not: for large ones in `max_detached`, for small ones beyond what
  // later messages keep.
  void detach() {
    if (completed_ == posted()) return;
    Outgoing& entry = at(completed_ + 1);
    if (keep(entry, num_small + num_small_per_ack + 1) || num_detached_ == max_detached) return;
    ++num_detached_;
    entry.detached = true;
    own(entry, pool_.take());
  }

  // Drops all messages up to `number`.
  void acknowledge(uint64_t number) {
    for (; acknowledged_ < number; ++acknowledged_) {
      Outgoing& entry = entries_.front();
      if (entry.detached) {
        pool_.put(std::move(entry.copy));
        --num_detached_;
      } else if (entry.copy) {
        kept_bytes_ -= entry.header.length;
      }
      entries_.pop_front();
    }
    count_completed();
  }

  uint64_t posted() const { return acknowledged_ + entries_.size(); }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t completed() const { return completed_; }
  size_t small_bytes() const { return small_bytes_; }

 private:
  bool keep(Outgoing& entry, size_t room) {
    size_t length = entry.header.length;
    if (length > small_bytes_ || kept_bytes_ + length > room * small_bytes_) return false;
    kept_bytes_ += length;
    own(entry, new_buffer(length));
    return true;
  }

  void own(Outgoing& entry, PayloadBuffer buffer) {
    if (entry.header.length) hccl::copy(buffer.get(), entry.payload, entry.header.length);
    entry.payload = buffer.get();
    entry.copy = std::move(buffer);
    count_completed();
  }

  void count_completed() {
    completed_ = std::max(completed_, acknowledged_);
    while (completed_ < posted() && at(completed_ + 1).copy) ++completed_;
  }

  const size_t small_bytes_;
  BufferPool& pool_;
  std::deque<Outgoing> entries_;
  uint64_t acknowledged_ = 0;
  uint64_t completed_ = 0;
  size_t kept_bytes_ = 0;
  size_t num_detached_ = 0;
};

}  // namespace hccl
