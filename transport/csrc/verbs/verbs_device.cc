#include "verbs/verbs_device.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "verbs/nap.h"

namespace hccl {

namespace {

// How long a queue pair is nobody's before the thread takes it over.
constexpr auto patience = std::chrono::milliseconds(2);

int new_event() {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

}  // namespace

VerbsDevice::VerbsDevice() : bell_(new_event()) {
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void VerbsDevice::stop() {
  std::lock_guard lock(stop_mutex_);
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(bell_.get(), &one, sizeof one);
  thread_.join();
}

void VerbsDevice::wake() {
  if (!sleeps_.load(std::memory_order_seq_cst)) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(bell_.get(), &one, sizeof one);
}

void VerbsDevice::attach(QueuePair* pair) {
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({pair, 0, false});
  }
  wake();
}

void VerbsDevice::detach(QueuePair* pair) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [pair](const Entry& entry) { return entry.pair == pair; });
}

void VerbsDevice::run() {
  while (!stop_.load(std::memory_order_seq_cst)) {
    try {
      if (!drive()) rest();
    } catch (const LaneInterrupted&) {
      // Its queue pair is in ERROR by now, and signals are for other threads.
    }
    sleeps_.store(false, std::memory_order_seq_cst);
  }
}

void VerbsDevice::rest() {
  sleeps_.store(true, std::memory_order_seq_cst);
  Nap nap(Nap::Sleeper::device);
  nap.watch(bell_.get());
  auto until = VerbsClock::time_point::max();
  {
    std::lock_guard lock(mutex_);
    for (Entry& entry : entries_) {
      // Where others poll, a look every now and then is enough.
      entry.naps =
          entry.pair->num_drives() == entry.num_drives && !entry.pair->is_watched();
      if (entry.naps) {
        entry.pair->prepare_nap(nap);
      } else {
        entry.num_drives = entry.pair->num_drives();
        until = VerbsClock::now() + patience;
      }
    }
  }
  nap.announce();
  if (!take_last_look() && !stop_.load(std::memory_order_seq_cst)) nap.sleep(until);
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(bell_.get(), &count, sizeof count);
}

// Drives what nobody else has driven since the last look.
bool VerbsDevice::drive() {
  std::lock_guard lock(mutex_);
  bool moved = false;
  for (Entry& entry : entries_) {
    if (entry.pair->num_drives() != entry.num_drives) continue;
    moved |= entry.pair->drive();
    entry.num_drives = entry.pair->num_drives();
  }
  return moved;
}

// Drives all that the thread is about to sleep on, also what another thread is just posting to.
bool VerbsDevice::take_last_look() {
  std::lock_guard lock(mutex_);
  bool moved = false;
  for (Entry& entry : entries_) {
    if (!entry.naps) continue;
    moved |= entry.pair->drive_in_turn();
    entry.num_drives = entry.pair->num_drives();
  }
  return moved;
}

}  // namespace hccl
