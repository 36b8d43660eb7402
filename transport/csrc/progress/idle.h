// Waiting while nothing moves: spin, then yield, then sleep.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace hccl {

// Cores this process may use: affinity mask and cgroup quota.
int usable_cores();

// For a thread that will yield to others of its core. Linux from 6.6 on passes a thread that yields
// over until the others have had a time slice more than it, of 1.4 to 2.8 ms: a rank that waited
// for one message is then late by thousands of calls. From 6.12 on a thread may have a slice of its
// own: half a millisecond from now on, if it has more.
void shorten_slice();

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether to spin in the next wait of one owner. A long wait says nothing about the next one: its
// peer computed. A message that comes soon after the spinning may have waited for its end: where
// the peer can run only on this core, which no process knows of its peers, each does. So spins get
// rarer.
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

 private:
  static constexpr int most_in_vain = 2;  // then every fifth wait tries again
  // Several threads may wait for one owner. Relaxed: a lost count costs one spin.
  std::atomic<int> in_vain_{0};  // spins in a row
  std::atomic<int> to_skip_{0};  // waits until the next spin
};

class Idle {
 public:
  // Spinning pays only while every rank of the host has a core of its own. With fewer cores it
  // takes the core from the very rank that it waits for, and a yield gives the core up at once. A
  // rank with a core of its own must not yield: another program would get a whole time slice. The
  // scheduler prefers a sleeper that is woken.
  //
  // `spins`: the record of earlier waits; nullptr for a wait that must not spin.
  Idle(SpinRecord* spins, int num_yields)
      : spins_(spins), num_yields_(num_yields), yields_(spins == nullptr) {}

  void reset() {
    if (spins_in_vain_ && Clock::now() - began_ <= 2 * spin_time) spins_->fail();
    if (spinning_) spins_->succeed();
    spinning_ = spins_in_vain_ = false;
    yields_ = spins_ == nullptr;
    count_ = 0;
  }
  // Whether the next turn is the first one after progress.
  bool begins() const { return count_ == 0; }
  // This wait yields its core: whom it waits for runs there. To sleep would keep both there, as who
  // wakes somebody draws him to its own core; of two that can run, the scheduler moves one.
  void yield_instead() { yields_ = true; }
  // One turn without progress. False: time to sleep.
  bool turn() {
    if (!yields_) {
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
  // The next turn() returns false.
  void give_up() { count_ = max_turns; }

  using Clock = std::chrono::steady_clock;
  // A time, as a turn may be a read of memory or a system call per socket. Longer than a peer that
  // sleeps takes to wake and answer, 200 us where its virtual core had been idle: else both sleep
  // at each wait from then on. Not longer: on a busy machine who has used up its time slice waits
  // for a core when the message comes.
  static constexpr auto spin_time = std::chrono::microseconds(300);
  // Many times what the yields take among ranks that all wait. Where other programs want the core,
  // a yield may last several of their time slices, and no deadline is checked meanwhile: on a busy
  // machine a wait of 0.5 s took 1.4 s.
  static constexpr auto yield_time = std::chrono::milliseconds(2);
  static constexpr int max_turns = 1 << 30;

  void begin() {
    spinning_ = spins_->may_spin();
    if (!spinning_) give_up();
  }

  bool spun_enough() {
    if ((count_ & 15) != 15 || !exceeds(spin_time, 15)) return false;
    spinning_ = false;
    spins_in_vain_ = true;
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
  bool yields_;
  int count_ = 0;
  bool spinning_ = false;
  bool spins_in_vain_ = false;  // in this wait
  Clock::time_point began_;
};

}  // namespace hccl
