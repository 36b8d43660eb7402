#include "base/memory/memory_watch.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

namespace hccl {

namespace {

constexpr uintptr_t page = 4096;
// Newer than some headers: memory that only user space touches needs no privilege (Linux 5.11).
constexpr int user_mode_only = 1;
constexpr uint64_t wanted_features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
                                     UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
constexpr size_t events_per_read = 16;

// Whether all of it is private anonymous memory: shared pages can be truncated by a call on their
// descriptor, also in another process, which userfaultfd does not report.
bool is_private(uintptr_t begin, uintptr_t end) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                       &std::fclose);
  if (!maps) return false;
  char line[512];
  uintptr_t covered = begin;
  while (covered < end && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uintptr_t first, last;
    char kind;
    uint64_t inode;
    // The path at its end may be longer than a line; the rest is not a mapping.
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*3c%c %*x %*x:%*x %" SCNu64, &first, &last,
                    &kind, &inode) != 4 ||
        last <= covered) {
      continue;
    }
    if (first > covered || kind != 'p' || inode != 0) return false;
    covered = last;
  }
  return covered >= end;
}

}  // namespace

MemoryWatch& MemoryWatch::start() {
  auto* made = new MemoryWatch();
  if (made->unavailable_.empty()) {
    // Other threads handle signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([made] { made->read_events(); }).detach();
    } catch (const std::system_error& error) {
      made->unavailable_ = std::string("no thread to read its events: ") + error.what();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  return *made;
}

MemoryWatch::MemoryWatch() {
  auto fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | user_mode_only));
  if (fd < 0) {
    unavailable_ = std::string("userfaultfd: ") + std::strerror(errno);
    return;
  }
  events_.emplace(fd);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = wanted_features;
  if (ioctl(fd, UFFDIO_API, &api) != 0) unavailable_ = "this kernel's userfaultfd is too old";
}

void MemoryWatch::read_events() {
  uffd_msg messages[events_per_read];
  for (;;) {
    pollfd waited{events_->get(), POLLIN, 0};
    if (poll(&waited, 1, -1) < 0) continue;
    is_reading_.store(true, std::memory_order_seq_cst);
    ssize_t num_bytes = read(events_->get(), messages, sizeof messages);
    for (ssize_t i = 0; i < num_bytes / static_cast<ssize_t>(sizeof(uffd_msg)); ++i) {
      const uffd_msg& message = messages[i];
      if (message.event == UFFD_EVENT_REMAP) {
        mark(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
      } else if (message.event == UFFD_EVENT_REMOVE || message.event == UFFD_EVENT_UNMAP) {
        mark(message.arg.remove.start, message.arg.remove.end);
      }
    }
    is_reading_.store(false, std::memory_order_seq_cst);
  }
}

void MemoryWatch::mark(uintptr_t begin, uintptr_t end) {
  for (Range& range : ranges_) {
    if (range.begin.load() >= end || range.end.load() <= begin) continue;
    if (!range.is_gone.exchange(true)) num_gone_.fetch_add(1);
  }
}

// Waits until the events that were read are marked.
void MemoryWatch::settle() const {
  while (is_reading_.load(std::memory_order_seq_cst)) std::this_thread::yield();
}

bool MemoryWatch::is_whole(size_t range) const {
  settle();
  return !ranges_[range].is_gone.load();
}

uint64_t MemoryWatch::num_gone() const {
  settle();
  return num_gone_.load();
}

// The range with exactly these bounds, or a free one; `overlaps`: another range has a part of it.
MemoryWatch::Range* MemoryWatch::find(uintptr_t begin, uintptr_t end, bool& overlaps) {
  Range* free = nullptr;
  for (Range& range : ranges_) {
    if (range.num_users == 0) {
      free = &range;
    } else if (range.begin.load() == begin && range.end.load() == end && !range.is_gone.load()) {
      return &range;
    } else if (range.begin.load() < end && begin < range.end.load()) {
      overlaps = true;
    }
  }
  return free;
}

std::optional<size_t> MemoryWatch::watch(const std::byte* address, size_t num_bytes) {
  auto begin = reinterpret_cast<uintptr_t>(address), end = begin + num_bytes;
  if (!unavailable_.empty() || begin % page != 0 || end % page != 0 || begin == end) {
    return std::nullopt;
  }
  std::lock_guard lock(mutex_);
  settle();
  bool overlaps = false;
  Range* range = find(begin, end, overlaps);
  if (range == nullptr) return std::nullopt;
  if (range->num_users == 0) {
    if (overlaps || !is_private(begin, end)) return std::nullopt;
    // Reset before the kernel can report events.
    range->is_gone.store(false);
    range->begin.store(begin);
    range->end.store(end);
    uffdio_register wanted{};
    wanted.range = {begin, num_bytes};
    // Nothing is ever protected: this mode has no cost.
    wanted.mode = UFFDIO_REGISTER_MODE_WP;
    if (ioctl(events_->get(), UFFDIO_REGISTER, &wanted) != 0) {
      range->begin.store(0);
      range->end.store(0);
      return std::nullopt;
    }
  }
  ++range->num_users;
  return static_cast<size_t>(range - ranges_.data());
}

void MemoryWatch::forget(size_t number) {
  std::lock_guard lock(mutex_);
  Range& range = ranges_[number];
  if (--range.num_users > 0) return;
  // Parts of an unmapped range may remain. A registered range costs the thread that unmaps it an
  // event.
  uffdio_range whole{range.begin.load(), range.end.load() - range.begin.load()};
  ioctl(events_->get(), UFFDIO_UNREGISTER, &whole);
  range.begin.store(0);
  range.end.store(0);
}

}  // namespace hccl
