// Messages that are written directly to their destination.
//
// A message that stays in registered memory may request a reply: its receiver then writes one of
// its later messages there. So a rank that reduces a chunk writes the result to the others' memory
// while it is in the cache, and no rank reads it from another core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace hccl {

struct Reply {
  uint64_t number = 0;       // of the message that is written there
  uint64_t fingerprint = 0;  // of the call that both messages belong to
  std::byte* address = nullptr;
  size_t num_bytes = 0;
};

// The replies that one end of a lane must write, or waits for, by message number.
class Replies {
 public:
  // False: there is no room, or it is not later than all others. That message is then sent as
  // usual.
  bool add(const Reply& reply) {
    if (pending_.size() == most || (!pending_.empty() && pending_.back().number >= reply.number)) {
      return false;
    }
    pending_.push_back(reply);
    return true;
  }
  // Drops replies up to message `number`.
  void forget(uint64_t number) {
    while (!pending_.empty() && pending_.front().number <= number) pending_.pop_front();
  }
  void clear() { pending_.clear(); }
  // After forget(number - 1): the reply of this message; null: none.
  const Reply* find(uint64_t number, uint64_t fingerprint, size_t num_bytes) const {
    if (pending_.empty()) return nullptr;
    const Reply& next = pending_.front();
    bool is_it =
        next.number == number && next.fingerprint == fingerprint && next.num_bytes == num_bytes;
    return is_it ? &next : nullptr;
  }
  const std::deque<Reply>& pending() const { return pending_; }

 private:
  static constexpr size_t most = 64;

  std::deque<Reply> pending_;
};

}  // namespace hccl
