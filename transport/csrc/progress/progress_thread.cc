#include "progress/progress_thread.h"

#include <signal.h>

#include <algorithm>

#include "progress/idle.h"

namespace hccl {

namespace {

// The thread does not compute but its process usually does, so it releases its core soon.
constexpr int num_yields = 20;
constexpr int longest_sleep_ms = 1000;

}  // namespace

ProgressThread::ProgressThread() : bell_(new_event()) {}

void ProgressThread::start() {
  std::lock_guard lock(mutex_);
  if (stopping_ || thread_.joinable()) return;
  // Signals belong to the main thread, where Python handles them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Without a thread nothing runs in the background: each thread that waits drives.
void ProgressThread::kick(const std::shared_ptr<Drivable>& drivable) {
  std::lock_guard lock(mutex_);
  if (stopping_ || !thread_.joinable()) return;
  list(drivable);
  kicked_.notify_one();
  wake();
}

void ProgressThread::list(const std::shared_ptr<Drivable>& drivable) {
  if (std::find(active_.begin(), active_.end(), drivable) == active_.end()) {
    active_.push_back(drivable);
  }
}

void ProgressThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    kicked_.notify_one();
    wake();
  }
  if (thread_.joinable()) thread_.join();
  // They refer to this object; without this neither would ever be freed.
  Drivables dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(active_);
}

void ProgressThread::loop() {
  shorten_slice();
  Drivables drivables;
  Idle idle(nullptr, num_yields);
  for (;;) {
    drivables.clear();  // a wait must keep none alive
    {
      std::unique_lock lock(mutex_);
      kicked_.wait(lock, [this] { return stopping_ || !active_.empty(); });
      if (stopping_) return;
      drivables = active_;
    }
    Drivable::Turn turned = turn(drivables);
    if (turned == Drivable::Turn::moved) {
      idle.reset();
    } else if (turned == Drivable::Turn::quiet || !idle.turn()) {
      sleep();
    }
  }
}

// Returns the most urgent of all turns. A communicator that is done, or that another thread drives,
// leaves the list until the next kick().
Drivable::Turn ProgressThread::turn(const Drivables& drivables) {
  auto most_urgent = Drivable::Turn::not_mine;
  for (const auto& drivable : drivables) {
    // It leaves the list first; a concurrent kick adds it again.
    {
      std::lock_guard lock(mutex_);
      std::erase(active_, drivable);
    }
    Drivable::Turn turned = drivable->progress_turn();
    most_urgent = std::min(most_urgent, turned);
    if (turned == Drivable::Turn::not_mine) continue;
    std::lock_guard lock(mutex_);
    list(drivable);
  }
  return most_urgent;
}

void ProgressThread::sleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  // The current list: other objects have a driver and must not be touched.
  Drivables drivables;
  bool all_sleep;
  {
    std::lock_guard lock(mutex_);
    drivables = active_;
    all_sleep = !drivables.empty() && !stopping_;
  }
  {
    Sleep sleep(Sleeper::progress_thread);
    sleep.watch(bell_.get());
    for (const auto& drivable : drivables) all_sleep = all_sleep && drivable->prepare_sleep(sleep);
    if (all_sleep) sleep.wait(longest_sleep_ms);
  }
  asleep_.store(false, std::memory_order_seq_cst);
  clear_event(bell_);
}

}  // namespace hccl
