// The messages of a lane that were posted and not acknowledged yet, in order.
//
// A small payload is copied as it is posted, so its owner has it back at once. A large one stays
// borrowed until it is acknowledged, or until detach() copies it. Both kinds of copy are bounded.
#pragma once

#include <memory>
#include <vector>

#include "lanes/lane.h"

namespace hccl {

struct Outgoing {
  static constexpr int no_path = -1;

  Header header;
  const std::byte* payload = nullptr;
  int path = no_path;     // the connection that carries it, or carried it and may have delivered it
  bool was_sent = false;  // left at least once, maybe on a connection that is gone
  bool owned = false;     // the payload is no longer the caller's
  std::unique_ptr<std::byte[]> copy;  // of a large payload
  size_t ring_bytes = 0;  // of a small one, and what was skipped before it
};

class SendWindow {
 public:
  static constexpr size_t max_detached = 4;
  // What is copied as it is posted; `num_small` such payloads may wait at once.
  static size_t small_bytes(size_t slot_bytes);
  static constexpr size_t num_small = 8;

  explicit SendWindow(size_t slot_bytes);

  // Returns the message's number: 1 for the first, then counting up.
  uint64_t post(const Header& header, const std::byte* payload);
  Outgoing& at(uint64_t number) { return entries_[number & (entries_.size() - 1)]; }
  // Copies the payload if it is small and there is room.
  void keep(uint64_t number);
  void detach();
  // Forgets all messages up to `number`.
  void acknowledge(uint64_t number);

  uint64_t posted() const { return posted_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t completed() const { return completed_; }

 private:
  void own(Outgoing& entry, const std::byte* copy);

  const size_t slot_bytes_;
  const size_t small_bytes_;
  std::vector<Outgoing> entries_;  // a power of two of them, by number
  uint64_t posted_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t completed_ = 0;

  std::vector<std::byte> ring_;  // small copies, in order
  size_t ring_end_ = 0;
  size_t ring_used_ = 0;
  size_t num_detached_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // slots for large copies
};

}  // namespace hccl
