// Waiting while nothing moves: spin, then yield, then sleep.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace hccl {

// How a rank waits for its peers. `spin` never sleeps, `balanced` sleeps after a while, and `idle`
// at once.
enum class Wait : int { spin, balanced, idle };

// Cores this process may use: affinity mask and cgroup quota.
int usable_cores();

// For a thread that waits for peers. Of the threads that want a core, Linux prefers the one whose
// time slice would end first. Among programs that compute, a thread that wakes up or yields is
// therefore late by several of their slices, of 1.4 to 2.8 ms each. From Linux 6.12 on a thread can
// set its slice: this sets a tenth of a millisecond, if it has more. Its share of the core stays.
void shorten_slice();

// How often another thread has taken the core from this one; its yields count too.
long count_preemptions();
// Whether one has since the last question of this thread.
bool was_preempted();

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A spin that lasted longer lost its core: a time slice of another program is 1.4 to 2.8 ms.
inline constexpr auto longest_spin = std::chrono::milliseconds(1);

// Decides whether to spin in the next wait of one owner. A long wait does not predict the next one,
// because its peer computed. A message that arrives soon after a spin may have waited for its end:
// if the peer can run only on this core, which no process knows, every message does. So spins
// become rarer. Another program that took the core during a spin will do so again: a spin uses up
// the time slice that this thread needs when the message is there, and sleepers go first.
class SpinRecord {
 public:
  bool may_spin() {
    if (in_vain_.load(std::memory_order_relaxed) == 0) return true;
    return to_skip_.fetch_sub(1, std::memory_order_relaxed) <= 0;
  }
  void succeed() {
    if (in_vain_.load(std::memory_order_relaxed) != 0) in_vain_.store(0, std::memory_order_relaxed);
  }
  void fail() {
    int before = in_vain_.load(std::memory_order_relaxed);
    to_skip_.store(1 << before, std::memory_order_relaxed);
    in_vain_.store(std::min(before + 1, most_in_vain), std::memory_order_relaxed);
  }
  // Another program had the core during a spin or a yield.
  void lose_core() { in_crowd_.store(waits_in_crowd, std::memory_order_relaxed); }
  // Whether the next wait sleeps at once for that.
  bool must_sleep() {
    return in_crowd_.load(std::memory_order_relaxed) > 0 &&
           in_crowd_.fetch_sub(1, std::memory_order_relaxed) > 0;
  }

 private:
  static constexpr int most_in_vain = 2;  // then every fifth wait tries again
  // Several threads may wait for one owner. Relaxed: a lost count costs one spin.
  std::atomic<int> in_vain_{0};  // spins in a row
  std::atomic<int> to_skip_{0};  // waits until the next spin
  // Together they cost about as much as the time slice that was lost, if the core is free again.
  static constexpr int waits_in_crowd = 16;
  std::atomic<int> in_crowd_{0};  // waits that sleep at once, whatever succeeds
};

class Idle {
 public:
  // Spinning pays only if every rank of the host has its own core. With fewer cores it takes the
  // core from the rank that it waits for; a yield releases the core at once. A rank with its own
  // core must not yield, because another program would get a whole time slice. The scheduler
  // prefers a woken sleeper.
  //
  // `spins`: the record of earlier waits; nullptr for a wait that must not spin.
  Idle(SpinRecord* spins, int num_yields)
      : spins_(spins), num_yields_(num_yields), yields_(spins == nullptr) {}

  void reset() {
    if (spins_in_vain_ && Clock::now() - began_ <= 2 * spin_time) spins_->fail();
    if (spinning_) {
      spins_->succeed();
      // A clock is a small part of such a wait. The turn that moved may have taken long itself.
      if (count_ > 63 && has_lasted() && was_preempted()) spins_->lose_core();
    }
    spinning_ = spins_in_vain_ = false;
    yields_ = spins_ == nullptr;
    count_ = 0;
  }
  // Whether the next turn is the first one after progress.
  bool begins() const { return count_ == 0; }
  // This wait yields its core, on which the peer runs. A sleep would keep both there, because a
  // waking thread draws the sleeper to its own core; of two runnable threads, the scheduler moves
  // one.
  void yield_instead() { yields_ = true; }
  // Instead of a sleep, whatever earlier waits were like.
  void spin_again() {
    spinning_ = !yields_;
    spins_in_vain_ = false;
    count_ = 1;
    began_ = Clock::now();
  }
  // One turn without progress. False: time to sleep.
  bool turn() {
    if (count_ == 0) begin();
    if (!yields_) {
      if (count_ == max_turns || spun_enough()) return false;
      pause_cpu();
    } else {
      // The clock costs a tenth of a yield.
      if (count_ >= num_yields_) return false;
      if (exceeds(yield_time, 0)) {
        if (spins_ != nullptr) spins_->lose_core();
        return false;
      }
      sched_yield();
    }
    ++count_;
    return true;
  }
  // A clock costs more than a turn: true every few turns.
  bool look_at_clock() const { return (count_ & 63) == 63; }

 private:
  // The next turn() returns false.
  void give_up() { count_ = max_turns; }

  using Clock = std::chrono::steady_clock;
  // A time, because a turn may be a memory read or a system call per socket. Longer than a sleeping
  // peer takes to wake and answer, 200 us on an idle virtual core: otherwise both sleep in every
  // later wait. Not longer: on a busy machine a thread that has used up its time slice waits for a
  // core when the message arrives.
  static constexpr auto spin_time = std::chrono::microseconds(300);
  // Many times the duration of yields among waiting ranks. If other programs use the core, a yield
  // may last several of their time slices, during which no deadline is checked: on a busy machine a
  // wait of 0.5 s took 1.4 s.
  static constexpr auto yield_time = std::chrono::milliseconds(2);
  static constexpr int max_turns = 1 << 30;

  void begin() {
    bool sleeps = spins_ != nullptr && spins_->must_sleep();
    spinning_ = !sleeps && !yields_ && spins_->may_spin();
    if (sleeps || (!yields_ && !spinning_)) give_up();
  }

  bool spun_enough() {
    if ((count_ & 15) != 15 || !exceeds(spin_time, 15)) return false;
    spinning_ = false;
    spins_in_vain_ = true;
    if (has_lasted()) spins_->lose_core();
    return true;
  }

  bool has_lasted() const { return Clock::now() - began_ > longest_spin; }

  // Whether more than `limit` has passed since turn `first`; if so, it gives up.
  bool exceeds(Clock::duration limit, int first) {
    Clock::time_point now = Clock::now();
    if (count_ == first) began_ = now;
    if (now - began_ <= limit) return false;
    give_up();
    return true;
  }

  SpinRecord* const spins_;
  const int num_yields_;
  bool yields_;
  int count_ = 0;
  bool spinning_ = false;
  bool spins_in_vain_ = false;  // in this wait
  Clock::time_point began_;
};

}  // namespace hccl
