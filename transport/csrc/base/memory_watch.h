// Notices when memory that others own goes: unmapped, replaced, moved, or handed back to the
// system.
//
// A device that was told of memory keeps its pages, and would go on using them when the same
// address has become other memory. Nothing but the kernel knows that (userfaultfd): the thread that
// unmaps waits there until its event was read. A thread of its own reads the events. It takes no
// lock and frees no memory, or it could wait for itself, so it only marks what is gone.
//
// It is made once per process and lives as long, because from then on whoever unmaps needs that
// thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/descriptor.h"

namespace hccl {

class MemoryWatch {
 public:
  static constexpr size_t max_ranges = 256;

  // Never destroyed. Of a kernel or container that has no userfaultfd, unavailable() says why.
  static MemoryWatch& start();

  const std::string& unavailable() const { return unavailable_; }

  // ---- any thread
  // Watches whole pages: the number of the range, to be given back by forget(). None where it is
  // not private and anonymous, is watched in other parts already, or too much is. Takes a
  // millisecond where a process has many mappings.
  std::optional<size_t> watch(const std::byte* begin, size_t num_bytes);
  // Whether all of it is the memory that it was. Sees everything that this thread or one before it
  // in time has unmapped.
  bool is_whole(size_t range) const;
  void forget(size_t range);
  // How many ranges have gone so far.
  uint64_t num_gone() const;

 private:
  // Written under the mutex, and read by the watching thread.
  struct Range {
    std::atomic<uintptr_t> begin{0}, end{0};  // 0: free
    std::atomic<bool> is_gone{false};
    size_t num_users = 0;
  };

  MemoryWatch();
  void settle() const;
  void read_events();
  void mark(uintptr_t begin, uintptr_t end);
  Range* find(uintptr_t begin, uintptr_t end, bool& overlaps);

  std::string unavailable_;
  std::optional<Descriptor> events_;
  std::mutex mutex_;
  std::array<Range, max_ranges> ranges_;
  std::atomic<uint64_t> num_gone_{0};
  // Set while events were read and are not marked yet. An unmapping thread goes on after its event
  // was read, so it, and whom it tells, finds this set until the mark is there.
  std::atomic<bool> is_reading_{false};
};

}  // namespace hccl
