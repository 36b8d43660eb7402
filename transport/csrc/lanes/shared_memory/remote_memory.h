// Memory of another process of this host, which the kernel copies directly: one copy of a large
// payload instead of two, without a wait for slots.
#pragma once

#include <sys/types.h>

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

  // False: that process is gone, or the memory is not mapped any more.
  bool read(uint64_t address, std::byte* to, size_t num_bytes) const;
  bool write(uint64_t address, const std::byte* from, size_t num_bytes) const;

 private:
  explicit RemoteMemory(pid_t process) : process_(process) {}
  pid_t process_;
};

}  // namespace hccl
