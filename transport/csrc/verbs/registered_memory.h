// Memory of this process that a device accesses directly, without a copy into a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace hccl {

class RegisteredMemory {
 public:
  struct Use {
    uint64_t address = 0;  // as requests name it
    uint32_t lkey = 0;
    uint32_t rkey = 0;
    std::shared_ptr<const void> hold;  // as long as it lives, the memory stays registered
  };

  virtual ~RegisteredMemory() = default;
  // For access by this side and by the peer; none: it must be copied.
  virtual std::optional<Use> find(const std::byte* address, size_t num_bytes) = 0;
  // Called before a call sends or receives parts of the caller's buffer, which may be registered
  // now.
  virtual void expect(const std::byte* /*address*/, size_t /*num_bytes*/) {}
};

}  // namespace hccl
