// Detects when watched memory is unmapped, replaced, moved, or returned to the system.
//
// A device keeps the pages of registered memory, and would still use them after other memory took
// the same address. Only the kernel reports that (userfaultfd): the unmapping thread waits in the
// kernel until its event was read. The watching thread reads the events. It takes no lock and frees
// no memory, or it could wait for itself, so it only marks ranges as gone.
//
// It is made once per process and never ends, because every unmapping thread needs it.
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

  // Never destroyed. Without userfaultfd, unavailable() says why.
  static MemoryWatch& start();

  const std::string& unavailable() const { return unavailable_; }

  // ---- any thread
  // Watches whole pages: the number of the range, to be given back by forget(). None if it is not
  // private and anonymous, overlaps another watched range, or too much is watched. Takes a
  // millisecond in a process with many mappings.
  std::optional<size_t> watch(const std::byte* begin, size_t num_bytes);
  // Whether the range is unchanged. Covers all unmapping that happened before this call.
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
  // Set while events were read but not marked yet. An unmapping thread continues after its event
  // was read, so it and later threads see this set until the mark is stored.
  std::atomic<bool> is_reading_{false};
};

}  // namespace hccl
