// Messages that are written straight to where their receiver wants them.
//
// A message that stays in its sender's memory may ask for a reply: that its receiver writes one of
// its own later messages there. So a rank that reduces a chunk leaves the result in the memory of
// the others while it is in the cache, and nobody reads it from another core.
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
  bool is_remote = false;  // in ordinary memory of who asked, where only the kernel can write
};

// The replies that one end of a lane has to write, or waits for, by the number of their message.
class Replies {
 public:
  // False: there is no room, or it does not come after all others. Then that message travels as
  // others do.
  bool add(const Reply& reply) {
    if (pending_.size() == most || (!pending_.empty() && pending_.back().number >= reply.number)) {
      return false;
    }
    pending_.push_back(reply);
    return true;
  }
  // Messages up to `number` have passed.
  void forget(uint64_t number) {
    while (!pending_.empty() && pending_.front().number <= number) pending_.pop_front();
  }
  void clear() { pending_.clear(); }
  // After forget(number - 1): the reply that this message is; null: it is none.
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
