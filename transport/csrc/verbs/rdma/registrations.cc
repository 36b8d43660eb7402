#include "verbs/rdma/registrations.h"

#include <algorithm>
#include <utility>

namespace hccl {

std::shared_ptr<RdmaRegistrations> RdmaRegistrations::create(std::shared_ptr<RdmaDomain> domain,
                                                             std::shared_ptr<Arena> arena,
                                                             size_t max_bytes) {
  std::shared_ptr<RdmaRegistrations> made(
      new RdmaRegistrations(std::move(domain), std::move(arena), max_bytes));
  made->arena_->observe(made);
  return made;
}

RdmaRegistrations::RdmaRegistrations(std::shared_ptr<RdmaDomain> domain,
                                     std::shared_ptr<Arena> arena, size_t max_bytes)
    : domain_(std::move(domain)), arena_(std::move(arena)), max_bytes_(max_bytes) {}

RdmaRegistrations::Registration::Registration(RdmaDomain& its_domain, const Arena::Place& place)
    : domain(its_domain),
      region(domain.register_memory(reinterpret_cast<uint64_t>(place.allocated), place.num_bytes,
                                    access_local_write | access_remote_write | access_remote_read)) {
}

std::optional<RegisteredMemory::Use> RdmaRegistrations::find(const std::byte* address,
                                                             size_t num_bytes) {
  std::lock_guard lock(mutex_);
  std::optional<Arena::Place> place = arena_->place_of(address, num_bytes);
  if (!place) return std::nullopt;
  auto found = entries_.find(place->allocated);
  if (found == entries_.end()) found = entries_.emplace(place->allocated, make(*place)).first;
  Entry& entry = found->second;
  entry.used_at = ++num_uses_;
  if (!entry.registration) return std::nullopt;
  const MemoryRegion& region = entry.registration->region;
  return Use{reinterpret_cast<uint64_t>(place->address), region.lkey, region.rkey,
             entry.registration};
}

RdmaRegistrations::Entry RdmaRegistrations::make(const Arena::Place& place) {
  if (place.num_bytes > max_bytes_) return {};
  make_room(place.num_bytes);
  try {
    Entry entry{std::make_shared<const Registration>(*domain_, place), place.num_bytes};
    num_bytes_ += place.num_bytes;
    return entry;
  } catch (const RdmaError&) {
    return {};  // its messages are copied, and it is not asked for again
  }
}

void RdmaRegistrations::make_room(size_t num_bytes) {
  while (num_bytes_ + num_bytes > max_bytes_) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!entry->second.registration) continue;
      if (oldest == entries_.end() || entry->second.used_at < oldest->second.used_at) oldest = entry;
    }
    num_bytes_ -= oldest->second.num_bytes;
    entries_.erase(oldest);
  }
}

void RdmaRegistrations::released(const std::byte* allocated) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(allocated);
  if (found == entries_.end()) return;
  num_bytes_ -= found->second.num_bytes;
  entries_.erase(found);
}

size_t RdmaRegistrations::num_bytes() const {
  std::lock_guard lock(mutex_);
  return num_bytes_;
}

}  // namespace hccl
