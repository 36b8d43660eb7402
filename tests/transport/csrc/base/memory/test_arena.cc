// Registered memory: allocation, what goes back to the system, and what peers may be told.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/memory/arena.h"
#include "check.h"

namespace hccl::test {
namespace {

constexpr size_t MiB = size_t{1} << 20;

size_t resident_bytes(const Arena& arena) {
  struct stat status;
  CHECK(fstat(arena.fd(), &status) == 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

HCCL_TEST(memory_is_zero_aligned_and_returned) {
  auto arena = Arena::create(64 * MiB);
  CHECK(arena->unavailable().empty());
  CHECK(resident_bytes(*arena) == 0);
  for (size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, 2 * MiB, 5 * MiB + 1}) {
    std::byte* memory = arena->allocate(size);
    size_t alignment = size < 2 * MiB ? 4096 : 2 * MiB;
    CHECK(reinterpret_cast<uintptr_t>(memory) % alignment == 0);
    CHECK(std::all_of(memory, memory + size, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(memory, 0x5a, size);
    CHECK(resident_bytes(*arena) >= size);
    arena->release(memory);
    CHECK(resident_bytes(*arena) == 0);
    CHECK(arena->num_allocated() == 0);
  }
}

// Random sizes in random order: nothing overlaps, and in the end all is one free range again.
HCCL_TEST(allocations_never_overlap_and_merge_again) {
  auto arena = Arena::create(32 * MiB);
  std::mt19937 random(7);
  struct Held {
    std::byte* begin;
    size_t size;
    std::byte mark;
  };
  std::vector<Held> held;
  for (int i = 0; i < 3000; ++i) {
    if (held.empty() || random() % 2) {
      size_t size = random() % 8 == 0 ? random() % (4 * MiB) : random() % 20000;
      try {
        Held one{arena->allocate(size), size, static_cast<std::byte>(random())};
        std::memset(one.begin, static_cast<int>(one.mark), size);
        held.push_back(one);
      } catch (const std::bad_alloc&) {
        CHECK(!held.empty());
      }
      continue;
    }
    std::swap(held[random() % held.size()], held.back());
    Held one = held.back();
    held.pop_back();
    CHECK(std::all_of(one.begin, one.begin + one.size, [&](std::byte b) { return b == one.mark; }));
    arena->release(one.begin);
  }
  for (const Held& one : held) arena->release(one.begin);
  arena->release(arena->allocate(32 * MiB));
}

HCCL_TEST(peers_are_mapped_once_and_bounds_are_checked) {
  auto mine = Arena::create(8 * MiB), theirs = Arena::create(4 * MiB);
  CHECK(mine->open_peer(duplicate(mine->fd())) == mine->window());
  auto window = mine->open_peer(duplicate(theirs->fd()));
  CHECK(window == mine->open_peer(duplicate(theirs->fd())));
  std::byte* memory = theirs->allocate(100);
  memory[99] = std::byte{42};
  uint64_t offset = *theirs->offset_of(memory, 100);
  CHECK(window->at(offset, 100)[99] == std::byte{42});
  CHECK(window->at(4 * MiB - 1, 1) != nullptr && window->at(4 * MiB, 0) != nullptr);
  CHECK(window->at(4 * MiB, 1) == nullptr && window->at(0, 4 * MiB + 1) == nullptr);
  CHECK(window->at(~uint64_t{0}, 2) == nullptr && window->at(2, ~uint64_t{0}) == nullptr);
  CHECK(!theirs->offset_of(window->at(offset, 100), 100));  // another mapping's address
  CHECK(!theirs->offset_of(theirs->window()->at(0, 1) + 4 * MiB - 10, 11));
}

HCCL_TEST(retired_memory_is_never_allocated_again) {
  auto arena = Arena::create(4 * MiB);
  std::byte* memory = arena->allocate(2 * MiB);
  arena->retire(*arena->offset_of(memory + 5000, 1));
  arena->release(memory);
  CHECK(resident_bytes(*arena) == 0);
  CHECK(arena->allocate(2 * MiB) != memory);
  CHECK(throws<std::bad_alloc>([&] { arena->allocate(2 * MiB); }));
}

HCCL_TEST(threads_allocate_at_once) {
  auto arena = Arena::create(64 * MiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 200; ++i) {
        size_t size = static_cast<size_t>(1 + (i * 977 + t * 31) % 9000);
        std::byte* memory = arena->allocate(size);
        std::memset(memory, t, size);
        CHECK(arena->offset_of(memory, size));
        CHECK(std::all_of(memory, memory + size, [t](std::byte b) { return b == std::byte(t); }));
        arena->release(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(arena->num_allocated() == 0);
}

}  // namespace
}  // namespace hccl::test
