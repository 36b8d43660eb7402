// Copies of every small size and alignment, and of some large ones.
#include "base/copy.h"

#include <cstring>
#include <vector>

#include "check.h"

namespace hccl::test {
namespace {

constexpr std::byte guard{0xa5};

void check(void (*way)(std::byte*, const std::byte*, size_t), size_t num_bytes, size_t to_offset,
           size_t from_offset) {
  // Never empty: as with memcpy, even zero bytes need addresses.
  std::vector<std::byte> from(from_offset + num_bytes + 1), to(to_offset + num_bytes + 64, guard);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  way(to.data() + to_offset, from.data() + from_offset, num_bytes);
  for (size_t i = 0; i < to_offset; ++i) CHECK(to[i] == guard);
  CHECK(std::memcmp(to.data() + to_offset, from.data() + from_offset, num_bytes) == 0);
  for (size_t i = to_offset + num_bytes; i < to.size(); ++i) CHECK(to[i] == guard);
}

HCCL_TEST(copies_are_exact) {
  for (auto way : {copy, copy_past_caches}) {
    for (size_t num_bytes = 0; num_bytes <= 260; ++num_bytes) {
      for (size_t offset : {0, 1, 15, 16, 33, 63}) {
        check(way, num_bytes, offset, 0);
        check(way, num_bytes, 0, offset);
      }
    }
    for (size_t num_bytes : {1023, 1024, 1025, 1151, 1152, 4096, 131071, 131072, 1 << 20}) {
      for (size_t offset : {0, 4, 16, 50}) check(way, num_bytes, offset, 16);
    }
  }
}

}  // namespace
}  // namespace hccl::test
