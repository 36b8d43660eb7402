#include "signal_bell.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace hccl {

namespace {

// Of the process, because the signal is. Relaxed: the handler only uses the number, and the descriptor
// was made long before by the thread that stored it; lock-free, as a handler needs it.
std::atomic<int> bell{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void ring(int) {
  int interrupted_errno = errno;
  int fd = bell.load(std::memory_order_relaxed);
  uint64_t one = 1;
  if (fd >= 0) [[maybe_unused]] ssize_t written = ::write(fd, &one, sizeof one);
  errno = interrupted_errno;
}

}  // namespace

bool ring_on_signal(int signal, int event_fd) {
  struct sigaction now {};
  if (sigaction(signal, nullptr, &now) != 0) return false;
  bool is_ours = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == &ring;
  bool is_default = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
  if (!is_ours && !is_default) return false;
  bell.store(event_fd, std::memory_order_relaxed);
  if (is_ours) return true;
  struct sigaction action {};
  action.sa_handler = &ring;
  action.sa_flags = SA_RESTART;  // programs that know nothing of it must not see EINTR
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) == 0) return true;
  bell.store(-1, std::memory_order_relaxed);
  return false;
}

void silence_signal_bell() { bell.store(-1, std::memory_order_relaxed); }

}  // namespace hccl
