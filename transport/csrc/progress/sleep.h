// The protocol by which threads sleep until something arrives: callers, drivers, progress thread.
//
//   1. announce() raises the flag of each object for which something may arrive. Threads and peers
//   that
//      bring something see the flag, and ring a descriptor that the sleeper watches.
//   2. The sleeper checks each object once more, for arrivals before its flag was raised.
//   3. wait() blocks in poll(), or the sleeper does so in an epoll set of its own.
//   4. The destructor lowers the flags.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

namespace hccl {

enum class Sleeper { caller, progress_thread };

// Shows others that a thread sleeps, or is about to. Several threads may sleep on one object.
class SleepFlag {
 public:
  virtual ~SleepFlag() = default;
  virtual void raise(Sleeper sleeper) = 0;
  virtual void lower(Sleeper sleeper) = 0;
};

class Sleep {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Sleep(Sleeper sleeper) : sleeper_(sleeper) {}
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;
  ~Sleep() {
    for (const auto& flag : flags_) flag->lower(sleeper_);
  }

  // `flag` and its descriptors live until the sleep ends.
  void announce(std::shared_ptr<SleepFlag> flag) {
    flags_.push_back(std::move(flag));
    flags_.back()->raise(sleeper_);
  }
  void watch(int descriptor, short events = POLLIN) { watched_.push_back({descriptor, events, 0}); }
  // Limits the sleep to this time.
  void limit(Clock::time_point until) { until_ = std::min(until_, until); }
  // Milliseconds until the limit, at most `longest`.
  int left_ms(int longest) const {
    if (until_ == Clock::time_point::max()) return longest;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, longest));
  }
  void wait(int longest_ms) {
    int timeout_ms = left_ms(longest_ms);
    if (timeout_ms > 0) poll(watched_.data(), watched_.size(), timeout_ms);
  }

 private:
  const Sleeper sleeper_;
  Clock::time_point until_ = Clock::time_point::max();
  std::vector<std::shared_ptr<SleepFlag>> flags_;
  std::vector<pollfd> watched_;
};

}  // namespace hccl
