// What to do while nothing moves: spin, then yield, then sleep.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace hccl {

// Cores this process may use: affinity mask and cgroup quota.
int usable_cores();

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Idle {
 public:
  // Spinning pays only while every rank of the host has a core of its own; else it steals the
  // core from the very rank that is waited for, and a yield hands it over at once. But a rank with
  // a core of its own must not yield: there it hands a whole time slice to a stranger, and only a
  // sleeper is let in ahead of strangers when its bell rings.
  Idle(bool may_spin, int num_yields)
      : may_spin_(may_spin), num_yields_(may_spin ? 0 : num_yields) {}

  void reset() { count_ = 0; }
  // Whether the next turn is the first one after progress, and would spin.
  bool begins_to_spin() const { return count_ == 0 && may_spin_; }
  // Ends the waiting awake: the next turn says sleep.
  void give_up() { count_ = max_turns; }
  // One turn without progress. False: time to sleep.
  bool turn() {
    if (may_spin_) {
      if (count_ == max_turns || spun_enough()) return false;
      pause_cpu();
    } else {
      if (count_ >= num_yields_) return false;
      sched_yield();
    }
    ++count_;
    return true;
  }
  // A clock costs more than a turn: true every so often.
  bool look_at_clock() const { return (count_ & 63) == 63; }

 private:
  using Clock = std::chrono::steady_clock;
  // By the clock, because a turn may be a look at memory or a system call per socket. Longer than
  // a message takes; but whoever spins away its time slice is kept from its core when the message
  // does come: on a busy machine 4 bytes between hosts took 600 us after a millisecond of spinning.
  static constexpr auto spin_time = std::chrono::microseconds(40);
  static constexpr int max_turns = 1 << 30;

  bool spun_enough() {
    if ((count_ & 15) != 15) return false;
    Clock::time_point now = Clock::now();
    if (count_ == 15) began_ = now;
    return now - began_ > spin_time;
  }

  const bool may_spin_;
  const int num_yields_;
  int count_ = 0;
  Clock::time_point began_;
};

}  // namespace hccl
