#include "lanes/shared_memory/remote_memory.h"

#include <sys/uio.h>

namespace hccl {

namespace {

bool read_process(pid_t process, uint64_t address, std::byte* to, size_t num_bytes) {
  iovec local{to, num_bytes}, remote{reinterpret_cast<void*>(address), num_bytes};
  return process_vm_readv(process, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(num_bytes);
}

}  // namespace

std::optional<RemoteMemory> RemoteMemory::open(pid_t process, const Segment& theirs) {
  RemoteMemory memory(process);
  // The right process has the same value there as in the segment.
  const SegmentHeader& header = theirs.header();
  uint64_t address = header.owner_address.load(std::memory_order_relaxed), found = 0;
  if (!memory.read(address, reinterpret_cast<std::byte*>(&found), sizeof found)) {
    return std::nullopt;
  }
  return found == address ? std::optional(memory) : std::nullopt;
}

bool RemoteMemory::read(uint64_t address, std::byte* to, size_t num_bytes) const {
  return read_process(process_, address, to, num_bytes);
}

bool RemoteMemory::write(uint64_t address, const std::byte* from, size_t num_bytes) const {
  iovec local{const_cast<std::byte*>(from), num_bytes},
      remote{reinterpret_cast<void*>(address), num_bytes};
  return process_vm_writev(process_, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(num_bytes);
}

}  // namespace hccl
