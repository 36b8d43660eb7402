// Protection domain: the memory that requests may touch, and the keys to it.
#pragma once

#include <cstdint>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <vector>

#include "verbs/verbs.h"

namespace hccl {

class QueuePair;

// Thread-safe. Must outlive its queue pairs.
class ProtectionDomain {
 public:
  ProtectionDomain();

  // Throws InvalidVerb where remote writing is allowed but local writing is not, as verbs does.
  MemoryRegion register_memory(uint64_t address, uint64_t length, uint32_t access);
  // Makes the key invalid at once and returns when no transfer uses the memory any more.
  void deregister_memory(uint32_t key);

  // Whether `key` covers the whole range with all the rights asked for.
  bool allows(uint32_t key, uint64_t address, uint64_t length, uint32_t access) const;

  void attach(QueuePair* pair);
  void detach(QueuePair* pair);

 private:
  // A key is an index and random bits, so that a stale or guessed one is noticed.
  static constexpr int index_bits = 16;

  mutable std::shared_mutex mutex_;  // regions_, free_, random_; the innermost lock
  std::vector<MemoryRegion> regions_;
  std::vector<uint32_t> free_;
  std::minstd_rand random_;
  std::mutex pairs_mutex_;  // pairs_; taken before a queue pair's lock
  std::vector<QueuePair*> pairs_;
};

}  // namespace hccl
