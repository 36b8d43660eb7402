// The messages of a lane that were posted and not acknowledged yet, in order.
//
// A small payload is copied as it is posted, so its owner has it back at once. A large one stays
// borrowed until it is acknowledged, or until detach() copies it. Both kinds of copy are bounded.
#pragma once

#include <deque>

#include "lanes/path.h"

namespace hccl {

struct Outgoing {
  static constexpr int no_path = -1;

  Header header;
  const std::byte* payload = nullptr;
  int path = no_path;     // the connection that carries it, or carried it and may have delivered it
  bool was_sent = false;  // left at least once, maybe on a connection that is gone
  bool owned = false;     // the payload is no longer the caller's
  bool detached = false;  // `copy` came from the pool
  PayloadBuffer copy;
};

class SendWindow {
 public:
  static constexpr size_t max_detached = 4;
  // What is copied as it is posted; `num_small` such payloads may wait at once.
  static size_t small_bytes(size_t slot_bytes);
  static constexpr size_t num_small = 8;

  SendWindow(size_t slot_bytes, BufferPool& pool)
      : small_bytes_(small_bytes(slot_bytes)), pool_(pool) {}

  // Returns the message's number: 1 for the first, then counting up.
  uint64_t post(const Header& header, const std::byte* payload);
  Outgoing& at(uint64_t number) { return entries_[number - acknowledged_ - 1]; }
  // Copies the payload if it is small and there is room.
  void keep(uint64_t number);
  void detach();
  // Forgets all messages up to `number`.
  void acknowledge(uint64_t number);

  uint64_t posted() const { return acknowledged_ + entries_.size(); }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t completed() const { return completed_; }

 private:
  void own(Outgoing& entry, PayloadBuffer copy);
  void count_completed();

  const size_t small_bytes_;
  BufferPool& pool_;
  std::deque<Outgoing> entries_;  // not acknowledged
  uint64_t acknowledged_ = 0;
  uint64_t completed_ = 0;
  size_t kept_bytes_ = 0;
  size_t num_detached_ = 0;
};

}  // namespace hccl
