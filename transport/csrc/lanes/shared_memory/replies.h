// Messages that are written straight to where their receiver wants them.
//
// A message that stays in its sender's memory may ask for a reply: that its receiver writes one of its own later
// messages there. So a rank that reduces a chunk leaves the result in the memory of the others while it is in the
// cache, and nobody reads it from another core.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace hccl {

struct Reply {
  uint64_t number = 0;  // of the message that is written there
  std::byte* address = nullptr;
  size_t num_bytes = 0;
  bool is_remote = false;  // in ordinary memory of who asked for it, where only the kernel can write
};

// Of one direction of a lane, in the order of their messages.
class Replies {
 public:
  // Whether there is room for it, and it comes after all others. Where not, the message travels as others do.
  bool may_add(const Reply& reply) const {
    return pending_.size() < most && (pending_.empty() || pending_.back().number < reply.number);
  }
  void add(const Reply& reply) { pending_.push_back(reply); }
  // Messages up to `number` have passed.
  void forget(uint64_t number) {
    while (!pending_.empty() && pending_.front().number <= number) pending_.pop_front();
  }
  // After forget(number - 1): that of this message; null: there is none.
  const Reply* find(uint64_t number) const {
    return !pending_.empty() && pending_.front().number == number ? &pending_.front() : nullptr;
  }
  const std::deque<Reply>& pending() const { return pending_; }

 private:
  static constexpr size_t most = 64;

  std::deque<Reply> pending_;
};

}  // namespace hccl
