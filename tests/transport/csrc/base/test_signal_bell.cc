// A signal that rings an eventfd, while that one is closed and its number goes to another.
#include "base/signal_bell.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "check.h"

namespace hccl::test {
namespace {

constexpr int num_bells = 5000;

uint64_t count_of(int event_fd) {
  uint64_t count = 0;
  return read(event_fd, &count, sizeof count) == sizeof count ? count : 0;
}

int make_event() { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }

HCCL_TEST(signal_rings_until_silenced) {
  signal(SIGUSR2, SIG_DFL);
  int bell = make_event();
  CHECK(ring_on_signal(SIGUSR2, bell));
  raise(SIGUSR2);
  CHECK(count_of(bell) == 1);
  silence_signal_bell();
  raise(SIGUSR2);
  CHECK(count_of(bell) == 0);
  close(bell);
}

HCCL_TEST(nothing_is_written_to_who_has_the_number_next) {
  std::atomic<bool> stop{false};  // relaxed: says only when to end
  std::thread signaller([&] {
    while (!stop.load(std::memory_order_relaxed)) raise(SIGUSR2);
  });
  uint64_t strays = 0;
  for (int i = 0; i < num_bells; ++i) {
    int bell = make_event();
    CHECK(ring_on_signal(SIGUSR2, bell));
    while (count_of(bell) == 0) std::this_thread::yield();
    silence_signal_bell();
    close(bell);
    int next = make_event();
    CHECK(next == bell);
    std::this_thread::yield();
    strays += count_of(next);
    close(next);
  }
  stop.store(true, std::memory_order_relaxed);
  signaller.join();
  CHECK(strays == 0);
}

}  // namespace
}  // namespace hccl::test
