#include "verbs/memory_region.h"

namespace hccl {

void check_region(uint64_t address, uint64_t length, uint32_t access) {
  if ((access & access_remote_write) && !(access & access_local_write)) {
    throw InvalidVerb("REMOTE_WRITE needs LOCAL_WRITE as well");
  }
  if (address + length < address) throw InvalidVerb("the range wraps around");
}

MemoryRegion ProtectionDomain::register_memory(uint64_t address, uint64_t length, uint32_t access) {
  check_region(address, length, access);
  std::unique_lock lock(mutex_);
  uint32_t key = 0;
  while (key == 0 || regions_.contains(key)) key = random_();
  return regions_[key] = {address, length, key, key, access};
}

void ProtectionDomain::deregister_memory(uint32_t key) {
  {
    std::unique_lock lock(mutex_);
    if (regions_.erase(key) == 0) throw InvalidVerb("no such memory region");
  }
  std::lock_guard lock(pairs_mutex_);
  for (UsesRegions* pair : pairs_) pair->release_region();
}

bool ProtectionDomain::allows(const ScatterGather& piece, uint32_t access) const {
  std::shared_lock lock(mutex_);
  auto found = regions_.find(piece.lkey);
  if (found == regions_.end()) return false;
  const MemoryRegion& region = found->second;
  return (region.access & access) == access && piece.address >= region.address &&
         piece.length <= region.length &&
         piece.address - region.address <= region.length - piece.length;
}

void ProtectionDomain::attach(UsesRegions* pair) {
  std::lock_guard lock(pairs_mutex_);
  pairs_.push_back(pair);
}

void ProtectionDomain::detach(UsesRegions* pair) {
  std::lock_guard lock(pairs_mutex_);
  std::erase(pairs_, pair);
}

}  // namespace hccl
