// Registered tensors as an RDMA device knows them.
//
// A piece of the arena is registered with the device when a message first touches it, whole, and stays
// so: to register costs the kernel a look at each page, and keeps it in memory. It ends when the piece
// goes back to the system, or when others need the room: no more than `max_bytes` are registered at a
// time, and the piece that was used least recently makes room first.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/arena.h"
#include "verbs/rdma/device.h"
#include "verbs/registered_memory.h"

namespace hccl {

// Thread-safe. What find() returned must not outlive it.
class RdmaRegistrations final : public RegisteredMemory, public ArenaObserver {
 public:
  static std::shared_ptr<RdmaRegistrations> create(std::shared_ptr<RdmaDomain> domain,
                                                   std::shared_ptr<Arena> arena, size_t max_bytes);

  const std::shared_ptr<RdmaDomain>& domain() const { return domain_; }
  // None too where the device or the limit of locked memory refuses.
  std::optional<Use> find(const std::byte* address, size_t num_bytes) override;
  void released(const std::byte* allocated) override;
  // Of all that is registered now, besides what is on its way out.
  size_t num_bytes() const;

 private:
  // Of one allocation; ended when the last message that uses it has dropped it too.
  struct Registration {
    Registration(RdmaDomain& domain, const Arena::Place& place);
    ~Registration() { domain.deregister_memory(region.lkey); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    RdmaDomain& domain;
    const MemoryRegion region;
  };
  struct Entry {
    std::shared_ptr<const Registration> registration;  // nullptr: refused
    size_t num_bytes = 0;                               // 0 if refused
    uint64_t used_at = 0;
  };

  RdmaRegistrations(std::shared_ptr<RdmaDomain> domain, std::shared_ptr<Arena> arena,
                    size_t max_bytes);
  Entry make(const Arena::Place& place);
  void make_room(size_t num_bytes);

  const std::shared_ptr<RdmaDomain> domain_;
  const std::shared_ptr<Arena> arena_;
  const size_t max_bytes_;

  mutable std::mutex mutex_;  // all below; taken before the arena's and the domain's
  std::map<const std::byte*, Entry> entries_;  // by allocation
  size_t num_bytes_ = 0;
  uint64_t num_uses_ = 0;
};

}  // namespace hccl
