// Memory in pages of 2 MB, where the kernel has them: millions of lanes are visited in no order.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <memory_resource>
#include <new>

namespace hccl::simulation {

class HugePages final : public std::pmr::memory_resource {
  static constexpr size_t page_bytes = 2 << 20;

  void* do_allocate(size_t num_bytes, size_t) override {
    size_t rounded = (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
    void* memory = std::aligned_alloc(page_bytes, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    if (num_bytes >= page_bytes) madvise(memory, rounded, MADV_HUGEPAGE);  // a wish only
    return memory;
  }
  void do_deallocate(void* memory, size_t, size_t) override { std::free(memory); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace hccl::simulation
