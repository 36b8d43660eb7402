// Memory of another process of this host, which the kernel copies from there in one go: one copy of a
// large payload instead of two, and nobody waits for a slot.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lanes/shared_memory/segment.h"

namespace hccl {

class RemoteMemory {
 public:
  // Of the process that owns `theirs`, if it lets this one read: containers and ptrace_scope may
  // forbid it, and a process of another PID namespace has another number there.
  static std::optional<RemoteMemory> open(pid_t process, const Segment& theirs);

  // False: that process is gone, or has nothing there any more.
  bool read(uint64_t address, std::byte* to, size_t num_bytes) const;

 private:
  explicit RemoteMemory(pid_t process) : process_(process) {}
  pid_t process_;
};

// Whether it is cheap to read our memory like this. The kernel looks up every page. Huge pages, which
// numpy asks for from 4 MiB on, halve that time; with small ones two copies are faster.
class ReadingCost {
 public:
  // Measured where it is not known yet, which takes some 50 us. The payload has sample_bytes or more.
  bool is_low(const std::byte* payload);
  // For tests.
  void assume(bool is_low) { assumed_ = is_low; }

  static constexpr size_t sample_bytes = 65536;

 private:
  struct Region {
    uintptr_t number = 0;
    uint32_t num_uses_left = 0;  // until it is measured again: other memory may lie there
    bool is_low = false;
  };
  static constexpr size_t region_bytes = 16 << 20;
  static constexpr uint32_t uses_per_measurement = 1024;
  std::array<Region, 32> regions_;
  std::optional<bool> assumed_;
};

}  // namespace hccl
