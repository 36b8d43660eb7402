#include "engine/progress_thread.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "engine/communicator.h"

namespace hccl {

namespace {

// The thread computes nothing and its process usually does: it gives up its core soon.
constexpr int num_yields = 20;
constexpr int no_sleeper_ms = 1000;

}  // namespace

ProgressThread::ProgressThread() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ProgressThread::~ProgressThread() {
  stop();
  ::close(wake_fd_);
}

void ProgressThread::start() {
  std::lock_guard lock(mutex_);
  if (stopping_ || thread_.joinable()) return;
  // Signals belong to the main thread, where Python looks at them.
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

// Without a thread nothing runs in the background, and whoever waits drives.
void ProgressThread::kick(const std::shared_ptr<Communicator>& communicator) {
  std::lock_guard lock(mutex_);
  if (stopping_ || !thread_.joinable()) return;
  list(communicator);
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_, &one, sizeof one);
  kicked_.notify_one();
}

void ProgressThread::list(const std::shared_ptr<Communicator>& communicator) {
  if (std::find(active_.begin(), active_.end(), communicator) == active_.end()) {
    active_.push_back(communicator);
  }
}

void ProgressThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wake_fd_, &one, sizeof one);
    kicked_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  // They hold this object too: let go, or neither is ever freed.
  Communicators dropped;
  std::lock_guard lock(mutex_);
  dropped.swap(active_);
}

void ProgressThread::loop() {
  Communicators communicators;
  Idle idle(nullptr, num_yields);
  for (;;) {
    communicators.clear();  // to wait must keep none alive
    {
      std::unique_lock lock(mutex_);
      kicked_.wait(lock, [this] { return stopping_ || !active_.empty(); });
      if (stopping_) return;
      communicators = active_;
    }
    if (turn(communicators)) {
      idle.reset();
    } else if (!idle.turn()) {
      sleep();
    }
  }
}

// True if anything moved. What is done, or driven by somebody who waits, is dropped from the list:
// whoever leaves work behind kicks again.
bool ProgressThread::turn(const Communicators& communicators) {
  bool moved = false;
  for (const auto& communicator : communicators) {
    // Leave the list first: a kick that comes meanwhile puts it back.
    {
      std::lock_guard lock(mutex_);
      std::erase(active_, communicator);
    }
    switch (communicator->progress_turn()) {
      case Communicator::Turn::moved: moved = true; [[fallthrough]];
      case Communicator::Turn::idle: {
        std::lock_guard lock(mutex_);
        list(communicator);
        break;
      }
      case Communicator::Turn::not_mine: break;
    }
  }
  return moved;
}

void ProgressThread::sleep() {
  // As listed now: what is not listed has a driver, and is not to be touched.
  Communicators communicators;
  {
    std::lock_guard lock(mutex_);
    communicators = active_;
  }
  std::vector<pollfd> fds{{wake_fd_, POLLIN, 0}};
  std::vector<Communicator*> sleeping;
  int longest_ms = no_sleeper_ms;
  for (const auto& communicator : communicators) {
    if (!communicator->prepare_sleep()) continue;
    sleeping.push_back(communicator.get());
    longest_ms = std::min(longest_ms, communicator->longest_sleep_ms());
    fds.push_back({communicator->epoll_fd(), POLLIN, 0});
  }
  bool all_sleep = !sleeping.empty() && sleeping.size() == communicators.size();
  if (all_sleep) poll(fds.data(), fds.size(), longest_ms);
  for (Communicator* communicator : sleeping) communicator->finish_sleep();
  uint64_t drained;
  [[maybe_unused]] ssize_t got = ::read(wake_fd_, &drained, sizeof drained);
}

}  // namespace hccl
