#include "base/fork_copies.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace hccl {

namespace {

constexpr int bits_per_word = 64;
constexpr int most_descriptors = 65536;  // higher ones stay with the child

// One bit for each descriptor. Relaxed: a child has the one thread that forked.
std::atomic<uint64_t> given_up[most_descriptors / bits_per_word];
std::once_flag is_registered;

// In the child, where only async-signal-safe calls are allowed. The numbers stay taken: their
// owners may still close them.
void give_up() {
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int word = 0; word < most_descriptors / bits_per_word; ++word) {
    uint64_t bits = given_up[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      int fd = word * bits_per_word + __builtin_ctzll(bits);
      if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
    }
  }
  if (nothing >= 0) close(nothing);
}

bool has_bit(int fd) { return fd >= 0 && fd < most_descriptors; }
uint64_t bit_of(int fd) { return uint64_t{1} << fd % bits_per_word; }

}  // namespace

void give_up_in_children(int fd) {
  std::call_once(is_registered, [] { pthread_atfork(nullptr, nullptr, give_up); });
  if (has_bit(fd)) given_up[fd / bits_per_word].fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void keep_in_children(int fd) {
  if (has_bit(fd)) given_up[fd / bits_per_word].fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

}  // namespace hccl
