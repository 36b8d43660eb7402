#include "base/signal_bell.h"

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace hccl {

namespace {

// One per process, like the signal; lock-free, for the handler. Sequentially consistent: either a
// handler sees that the bell is silenced, or the silencing thread sees the handler in num_ringing
// and waits. Otherwise the descriptor could be closed and its number reused when the handler
// writes.
std::atomic<int> bell{-1};
std::atomic<int> num_ringing{0};
static_assert(std::atomic<int>::is_always_lock_free);

constexpr auto longest_ring = std::chrono::milliseconds(100);

void ring(int) {
  int interrupted_errno = errno;
  num_ringing.fetch_add(1, std::memory_order_seq_cst);
  int fd = bell.load(std::memory_order_seq_cst);
  uint64_t one = 1;
  if (fd >= 0) [[maybe_unused]]
    ssize_t written = ::write(fd, &one, sizeof one);
  num_ringing.fetch_sub(1, std::memory_order_seq_cst);
  errno = interrupted_errno;
}

}  // namespace

bool ring_on_signal(int signal, int event_fd) {
  struct sigaction now{};
  if (sigaction(signal, nullptr, &now) != 0) return false;
  bool is_ours = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == &ring;
  bool is_default = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
  if (!is_ours && !is_default) return false;
  bell.store(event_fd, std::memory_order_seq_cst);
  if (is_ours) return true;
  struct sigaction action{};
  action.sa_handler = &ring;
  action.sa_flags = SA_RESTART;  // other code must not see EINTR
  sigemptyset(&action.sa_mask);
  if (sigaction(signal, &action, nullptr) == 0) return true;
  silence_signal_bell();
  return false;
}

// Waits for handlers on other threads; one on this thread has already ended.
void silence_signal_bell() {
  bell.store(-1, std::memory_order_seq_cst);
  auto until = std::chrono::steady_clock::now() + longest_ring;
  while (num_ringing.load(std::memory_order_seq_cst) != 0) {
    if (std::chrono::steady_clock::now() > until) break;
    sched_yield();
  }
}

void forget_signal_bell() {
  bell.store(-1, std::memory_order_seq_cst);
  num_ringing.store(0, std::memory_order_seq_cst);
}

}  // namespace hccl
