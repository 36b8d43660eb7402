// Registrations of memory with an RDMA device: registered tensors, and memory that calls use
// repeatedly.
//
// Registering makes the kernel pin each page. A piece of the arena is registered whole when a
// message first touches it. Other memory is registered when a second call uses it, and without
// partial pages at its ends, which have other owners too; MemoryWatch detects when it is unmapped.
//
// A registration ends when its memory is unmapped, or when others need the room: at most
// `max_bytes` are registered at a time, and the least recently used is dropped first.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/memory/arena.h"
#include "base/memory/memory_watch.h"
#include "verbs/rdma/device.h"
#include "verbs/registered_memory.h"

namespace hccl {

// Thread-safe. Results of find() must not outlive it.
class RdmaRegistrations final : public RegisteredMemory, public ArenaObserver {
 public:
  // For other memory: smaller pieces are copied, and the number of pieces is limited.
  static constexpr size_t min_other_bytes = 256 << 10;
  static constexpr size_t max_others = 64;

  // `watch`: nullptr: only the arena's memory is registered. It is never destroyed.
  static std::shared_ptr<RdmaRegistrations> create(std::shared_ptr<RdmaDomain> domain,
                                                   std::shared_ptr<Arena> arena, MemoryWatch* watch,
                                                   size_t max_bytes);

  const std::shared_ptr<RdmaDomain>& domain() const { return domain_; }
  // None also if the device or the limit of locked memory prevents it.
  std::optional<Use> find(const std::byte* address, size_t num_bytes) override;
  void expect(const std::byte* address, size_t num_bytes) override;
  void released(const std::byte* allocated) override;
  // All registered bytes, except registrations that are ending. Drops unmapped memory.
  size_t num_bytes();

 private:
  // Ends when the last message that uses it has dropped it.
  struct Registration {
    Registration(RdmaDomain& domain, const std::byte* begin, size_t num_bytes);
    ~Registration() { domain.deregister_memory(region.lkey); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    RdmaDomain& domain;
    const MemoryRegion region;
  };
  using RegistrationPtr = std::shared_ptr<const Registration>;
  // Of one allocation of the arena.
  struct CachedRegistration {
    RegistrationPtr registration;  // nullptr: refused
    size_t num_bytes = 0;          // 0 if refused
    uint64_t used_at = 0;
  };
  // Of other memory.
  struct Other {
    const std::byte* begin;
    size_t num_bytes;
    RegistrationPtr registration;
    size_t range;  // of the watch
    uint64_t used_at;

    bool holds(const std::byte* address, size_t length) const {
      return address >= begin && address + length <= begin + num_bytes;
    }
  };
  struct Seen {
    const std::byte* begin = nullptr;
    size_t num_bytes = 0;
    bool is_refused = false;  // by the watch, the device or the limit: not tried again for a while
  };

  RdmaRegistrations(std::shared_ptr<RdmaDomain> domain, std::shared_ptr<Arena> arena,
                    MemoryWatch* watch, size_t max_bytes);
  ~RdmaRegistrations() override;
  RegistrationPtr make(const std::byte* begin, size_t num_bytes);
  void make_room(size_t num_bytes);
  void sweep();
  void drop(std::vector<Other>::iterator other);
  bool was_seen(const std::byte* begin, size_t num_bytes);
  void see(const Seen& seen) { seen_[num_seen_++ % seen_.size()] = seen; }
  static Use use_of(const RegistrationPtr& registration, const std::byte* address);

  const std::shared_ptr<RdmaDomain> domain_;
  const std::shared_ptr<Arena> arena_;
  MemoryWatch* const watch_;
  const size_t max_bytes_;

  std::mutex mutex_;  // all below; taken before the arena's, the watch's and the domain's
  std::map<const std::byte*, CachedRegistration> entries_;  // by allocation
  std::vector<Other> others_;
  std::array<Seen, max_others> seen_;  // other memory that calls used last
  size_t num_seen_ = 0;
  uint64_t num_gone_ = 0;  // as of the last sweep
  size_t num_bytes_ = 0;
  uint64_t num_uses_ = 0;
};

}  // namespace hccl
