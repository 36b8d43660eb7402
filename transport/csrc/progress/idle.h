// What to do while nothing moves: spin, then yield, then sleep.
#pragma once

#include <sched.h>

#include <atomic>
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

// Whether spinning has paid lately, over the waits of one owner. Where the peer can run only on this
// core, each message waits until the spinning stops, and no process knows that of its peers.
class SpinRecord {
 public:
  enum class Advice { sleep, spin, try_again };

  Advice next_wait() {
    if (failures_.load(std::memory_order_relaxed) < failures_until_sleep) return Advice::spin;
    unsigned waits = waits_.fetch_add(1, std::memory_order_relaxed) + 1;
    return waits % waits_between_tries == 0 ? Advice::try_again : Advice::sleep;
  }
  void succeed() {
    if (failures_.load(std::memory_order_relaxed) != 0) failures_.store(0, std::memory_order_relaxed);
  }
  void fail() { failures_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr unsigned failures_until_sleep = 8;
  static constexpr unsigned waits_between_tries = 64;
  // Several threads may wait for one owner. Relaxed: a lost count costs one spin.
  std::atomic<unsigned> failures_{0};
  std::atomic<unsigned> waits_{0};
};

class Idle {
 public:
  // Spinning pays only while every rank of the host has a core of its own. With fewer cores it takes
  // the core from the very rank that it waits for, and a yield gives the core up at once. A rank with
  // a core of its own must not yield: another program would get a whole time slice. The scheduler
  // prefers a sleeper that is woken.
  //
  // `spins`: the record of earlier waits; nullptr for a wait that must not spin.
  Idle(SpinRecord* spins, int num_yields)
      : spins_(spins), num_yields_(spins != nullptr ? 0 : num_yields) {}

  void reset() {
    if (spinning_) spins_->succeed();
    spinning_ = false;
    count_ = 0;
  }
  // Whether the next turn is the first one after progress, and may spin.
  bool begins_to_spin() const { return count_ == 0 && spins_ != nullptr; }
  // The next turn() returns false.
  void give_up() { count_ = max_turns; }
  // One turn without progress. False: time to sleep.
  bool turn() {
    if (spins_ != nullptr) {
      if (count_ == 0) begin();
      if (count_ == max_turns || spun_enough()) return false;
      pause_cpu();
    } else {
      // The clock costs a tenth of a yield.
      if (count_ >= num_yields_ || exceeds(yield_time, 0)) return false;
      sched_yield();
    }
    ++count_;
    return true;
  }
  // A clock costs more than a turn: true every so often.
  bool look_at_clock() const { return (count_ & 63) == 63; }

 private:
  using Clock = std::chrono::steady_clock;
  // A time, because a turn may be a read of memory or a system call per socket. Longer than a message
  // takes. A thread that has used up its time slice waits for a core when the message comes: on a busy
  // machine 4 bytes between hosts took 600 us after a millisecond of spinning.
  static constexpr auto spin_time = std::chrono::microseconds(40);
  // A peer that has begun to sleep as well needs longer for its answer.
  static constexpr auto longer_spin_time = std::chrono::microseconds(100);
  // Many times what the yields take among ranks that all wait. Where other programs want the core, a
  // yield may last several of their time slices, and no deadline is checked meanwhile: on a busy
  // machine a wait of 0.5 s took 1.4 s.
  static constexpr auto yield_time = std::chrono::milliseconds(2);
  static constexpr int max_turns = 1 << 30;

  void begin() {
    SpinRecord::Advice advice = spins_->next_wait();
    spinning_ = advice != SpinRecord::Advice::sleep;
    if (!spinning_) give_up();
    limit_ = advice == SpinRecord::Advice::spin ? spin_time : longer_spin_time;
  }

  bool spun_enough() {
    if ((count_ & 15) != 15 || !exceeds(limit_, 15)) return false;
    spins_->fail();
    spinning_ = false;
    return true;
  }

  // Whether it is longer than `limit` since turn `first`; if so, it gives up.
  bool exceeds(Clock::duration limit, int first) {
    Clock::time_point now = Clock::now();
    if (count_ == first) began_ = now;
    if (now - began_ <= limit) return false;
    give_up();
    return true;
  }

  SpinRecord* const spins_;
  const int num_yields_;
  int count_ = 0;
  bool spinning_ = false;
  Clock::duration limit_{};
  Clock::time_point began_;
};

}  // namespace hccl
