// Memory of other owners that is watched: every way in which it can go is noticed at once.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "base/memory/memory_watch.h"
#include "check.h"

namespace hccl::test {
namespace {

constexpr size_t page = 4096;
constexpr size_t num_bytes = 64 * page;

std::byte* map(void* at = nullptr, int flags = 0) {
  void* mapped =
      mmap(at, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  CHECK(mapped != MAP_FAILED);
  std::memset(mapped, 1, num_bytes);
  return static_cast<std::byte*>(mapped);
}

// One for all tests; nullptr: there is no userfaultfd here.
MemoryWatch* watch() {
  static MemoryWatch& one = MemoryWatch::start();
  if (one.unavailable().empty()) return &one;
  std::printf("  skipped: %s\n", one.unavailable().c_str());
  return nullptr;
}

HCCL_TEST(every_way_to_lose_memory_is_noticed_at_once) {
  if (watch() == nullptr) return;
  const std::function<void(std::byte*)> ways[] = {
      [](std::byte* at) { munmap(at, num_bytes); },
      [](std::byte* at) { munmap(at + num_bytes - page, page); },
      [](std::byte* at) { madvise(at + page, page, MADV_DONTNEED); },
      [](std::byte* at) { map(at, MAP_FIXED); },
      [](std::byte* at) {
        CHECK(mremap(at, num_bytes, 4 * num_bytes, MREMAP_MAYMOVE) != MAP_FAILED);
      },
  };
  for (int turn = 0; turn < 200; ++turn) {
    for (const auto& lose : ways) {
      std::byte* at = map();
      uint64_t before = watch()->num_gone();
      std::optional<size_t> range = watch()->watch(at, num_bytes);
      CHECK(range && watch()->is_whole(*range));
      std::memset(at, 2, num_bytes);
      CHECK(watch()->is_whole(*range));
      if (turn % 2) {
        std::thread([&] { lose(at); }).join();
      } else {
        lose(at);
      }
      CHECK(!watch()->is_whole(*range) && watch()->num_gone() == before + 1);
      watch()->forget(*range);
    }
  }
}

HCCL_TEST(what_is_forgotten_or_beside_it_may_go) {
  if (watch() == nullptr) return;
  std::byte* at = map();
  std::optional<size_t> range = watch()->watch(at + page, 8 * page);
  CHECK(range);
  munmap(at, page);
  munmap(at + 9 * page, num_bytes - 9 * page);
  CHECK(watch()->is_whole(*range));
  uint64_t before = watch()->num_gone();
  watch()->forget(*range);
  munmap(at + page, 8 * page);
  CHECK(watch()->num_gone() == before);
}

HCCL_TEST(a_range_has_several_users_and_no_parts) {
  if (watch() == nullptr) return;
  std::byte* at = map();
  std::optional<size_t> one = watch()->watch(at, num_bytes), same = watch()->watch(at, num_bytes);
  CHECK(one && same == one);
  CHECK(!watch()->watch(at + page, page));
  CHECK(!watch()->watch(at + 1, page) && !watch()->watch(at, 100) && !watch()->watch(at, 0));
  watch()->forget(*one);
  CHECK(watch()->is_whole(*same));
  munmap(at, num_bytes);
  CHECK(!watch()->is_whole(*same));
  // The same address is other memory now, and can be watched anew.
  CHECK(map(at, MAP_FIXED) == at);
  CHECK(!watch()->watch(at, num_bytes));
  watch()->forget(*same);
  std::optional<size_t> anew = watch()->watch(at, num_bytes);
  CHECK(anew && watch()->is_whole(*anew));
  watch()->forget(*anew);
  munmap(at, num_bytes);
  CHECK(!watch()->watch(at, num_bytes));
}

HCCL_TEST(what_somebody_else_can_truncate_is_not_watched) {
  if (watch() == nullptr) return;
  int file = memfd_create("truncated", MFD_CLOEXEC);
  CHECK(file >= 0 && ftruncate(file, num_bytes) == 0);
  for (int flags : {MAP_SHARED, MAP_PRIVATE}) {
    void* mapped = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    CHECK(mapped != MAP_FAILED);
    std::memset(mapped, 1, num_bytes);
    CHECK(!watch()->watch(static_cast<std::byte*>(mapped), num_bytes));
    munmap(mapped, num_bytes);
  }
  ::close(file);
  void* shared =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED && !watch()->watch(static_cast<std::byte*>(shared), num_bytes));
  munmap(shared, num_bytes);
}

HCCL_TEST(mappings_of_which_the_range_has_parts_are_watched_without_holes) {
  if (watch() == nullptr) return;
  std::byte* at = map();
  CHECK(mprotect(at + 8 * page, page, PROT_READ) == 0);  // three mappings now
  std::optional<size_t> range = watch()->watch(at, num_bytes);
  CHECK(range);
  watch()->forget(*range);
  munmap(at + 8 * page, page);
  CHECK(!watch()->watch(at, num_bytes));
  munmap(at, num_bytes);
}

}  // namespace
}  // namespace hccl::test
