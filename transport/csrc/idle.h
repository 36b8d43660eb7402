// What to do while nothing moves: spin, then yield, then sleep.
#pragma once

#include <sched.h>

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
      : num_spins_(may_spin ? 1500 : 0), num_yields_(may_spin ? 0 : num_yields) {}

  void reset() { count_ = 0; }
  // Whether the next turn is the first one after progress, and would spin.
  bool begins_to_spin() const { return count_ == 0 && num_spins_ > 0; }
  // Ends the waiting awake: the next turn says sleep.
  void give_up() { count_ = num_spins_ + num_yields_; }
  // One turn without progress. False: time to sleep.
  bool turn() {
    if (count_ < num_spins_) {
      pause_cpu();
    } else if (count_ < num_spins_ + num_yields_) {
      sched_yield();
    } else {
      return false;
    }
    ++count_;
    return true;
  }
  // A clock costs more than a turn: true every so often.
  bool look_at_clock() const { return (count_ & 63) == 63; }

 private:
  const int num_spins_;
  const int num_yields_;
  int count_ = 0;
};

}  // namespace hccl
