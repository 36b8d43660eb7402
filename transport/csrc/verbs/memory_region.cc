#include "verbs/memory_region.h"

#include <algorithm>

#include "verbs/queue_pair.h"

namespace hccl {

ProtectionDomain::ProtectionDomain() : random_(std::random_device{}()) {}

MemoryRegion ProtectionDomain::register_memory(uint64_t address, uint64_t length,
                                               uint32_t access) {
  if ((access & access_remote_write) && !(access & access_local_write)) {
    throw InvalidVerb("REMOTE_WRITE needs LOCAL_WRITE as well");
  }
  if (address + length < address) throw InvalidVerb("the range wraps around");
  std::unique_lock lock(mutex_);
  if (free_.empty()) {
    if (regions_.size() == size_t{1} << index_bits) throw QueueFull("65536 regions at most");
    free_.push_back(static_cast<uint32_t>(regions_.size()));
    regions_.emplace_back();
  }
  uint32_t index = free_.back();
  free_.pop_back();
  // Never 0, and never the key that this index had before.
  uint32_t tag = regions_[index].key >> index_bits;
  uint32_t old = tag;
  while (tag == old || tag == 0) tag = static_cast<uint32_t>(random_() >> 8) & 0xffff;
  MemoryRegion region{address, length, tag << index_bits | index, access};
  regions_[index] = region;
  return region;
}

void ProtectionDomain::deregister_memory(uint32_t key) {
  {
    std::unique_lock lock(mutex_);
    uint32_t index = key & ((1u << index_bits) - 1);
    if (index >= regions_.size() || regions_[index].key != key || !regions_[index].address) {
      throw InvalidVerb("no such memory region");
    }
    regions_[index] = {0, 0, key, 0};
    free_.push_back(index);
  }
  std::lock_guard lock(pairs_mutex_);
  for (QueuePair* pair : pairs_) pair->release_region();
}

bool ProtectionDomain::allows(uint32_t key, uint64_t address, uint64_t length,
                              uint32_t access) const {
  std::shared_lock lock(mutex_);
  uint32_t index = key & ((1u << index_bits) - 1);
  if (index >= regions_.size()) return false;
  const MemoryRegion& region = regions_[index];
  return region.key == key && region.address != 0 && (region.access & access) == access &&
         address >= region.address && length <= region.length &&
         address - region.address <= region.length - length;
}

void ProtectionDomain::attach(QueuePair* pair) {
  std::lock_guard lock(pairs_mutex_);
  pairs_.push_back(pair);
}

void ProtectionDomain::detach(QueuePair* pair) {
  std::lock_guard lock(pairs_mutex_);
  pairs_.erase(std::remove(pairs_.begin(), pairs_.end(), pair), pairs_.end());
}

}  // namespace hccl
