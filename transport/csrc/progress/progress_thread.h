// The progress thread of the process drives communicators and devices that no other thread waits
// for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "progress/sleep.h"

namespace hccl {

// An object that the progress thread drives while no other thread does.
class Drivable {
 public:
  enum class Turn {
    moved,
    waiting,   // nothing moved, but a caller waits for it: turn again soon
    quiet,     // nothing moved, and a sleep may begin at once
    not_mine,  // another thread drives it, or nothing is left: until the next kick()
  };

  virtual ~Drivable() = default;
  // Makes all possible progress; returns at once.
  virtual Turn progress_turn() = 0;
  // Announces a sleep and checks once more. False: do not sleep.
  virtual bool prepare_sleep(Sleep& sleep) = 0;
};

// A Drivable may own this thread: call stop() before the last owner goes.
class ProgressThread {
 public:
  ProgressThread();
  ~ProgressThread() { stop(); }

  // Idempotent. Throws std::system_error.
  void start();
  // `drivable` has work that no other thread drives.
  void kick(const std::shared_ptr<Drivable>& drivable);
  // Ends its sleep, when something arrives for an object that it drives.
  void wake() {
    if (asleep_.load(std::memory_order_seq_cst)) signal_event(bell_);
  }
  // Ends the thread; unfinished work stays as it is.
  void stop();

 private:
  using Drivables = std::vector<std::shared_ptr<Drivable>>;

  void loop();
  Drivable::Turn turn(const Drivables& drivables);
  void sleep();
  void list(const std::shared_ptr<Drivable>& drivable);

  const Descriptor bell_;  // eventfd
  // Raised before the last read of active_; pairs with kick(), which reads it after adding to the
  // list.
  std::atomic<bool> asleep_{false};
  std::mutex mutex_;
  std::condition_variable kicked_;
  Drivables active_;  // guarded by mutex_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hccl
