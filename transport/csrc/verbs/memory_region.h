// Protection domain: the memory that requests may touch, and the keys to it.
#pragma once

#include <cstdint>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "verbs/verbs.h"

namespace hccl {

// The interface of a queue pair for its protection domain.
class UsesRegions {
 public:
  // Returns when none of its transfers uses a deregistered region any more.
  virtual void release_region() = 0;

 protected:
  ~UsesRegions() = default;
};

// Throws InvalidVerb where remote writing is allowed but local writing is not, as verbs does, and
// for a range that wraps around.
void check_region(uint64_t address, uint64_t length, uint32_t access);

// Thread-safe. Must outlive its queue pairs.
class ProtectionDomain {
 public:
  // Throws InvalidVerb, see check_region.
  MemoryRegion register_memory(uint64_t address, uint64_t length, uint32_t access);
  // Makes the key invalid at once and returns when no transfer uses the memory any more.
  void deregister_memory(uint32_t key);

  // Whether the key of the piece, an lkey or an rkey, covers all of it with all the rights asked
  // for.
  bool allows(const ScatterGather& piece, uint32_t access) const;

  void attach(UsesRegions* pair);
  void detach(UsesRegions* pair);

 private:
  mutable std::shared_mutex mutex_;  // regions_, random_; the innermost lock
  std::unordered_map<uint32_t, MemoryRegion> regions_;
  std::random_device random_;  // makes keys, so that stale or guessed ones are detected
  std::mutex pairs_mutex_;     // pairs_; taken before a queue pair's lock
  std::vector<UsesRegions*> pairs_;
};

}  // namespace hccl
