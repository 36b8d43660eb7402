// Memory of this process that a device reads and writes where it lies, without a copy into a slot.
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
  // For reading and writing, by this side and by the peer; none: it has to be copied.
  virtual std::optional<Use> find(const std::byte* address, size_t num_bytes) = 0;
  // A call is about to send or receive parts of this, all of which is the caller's: now is the time
  // to register it, if that is worth while.
  virtual void expect(const std::byte* /*address*/, size_t /*num_bytes*/) {}
};

}  // namespace hccl
