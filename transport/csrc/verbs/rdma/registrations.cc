#include "verbs/rdma/registrations.h"

#include <algorithm>
#include <utility>

namespace hccl {

namespace {

constexpr uintptr_t page = 4096;

}  // namespace

std::shared_ptr<RdmaRegistrations> RdmaRegistrations::create(std::shared_ptr<RdmaDomain> domain,
                                                             std::shared_ptr<Arena> arena,
                                                             MemoryWatch* watch, size_t max_bytes) {
  std::shared_ptr<RdmaRegistrations> made(
      new RdmaRegistrations(std::move(domain), std::move(arena), watch, max_bytes),
      [](RdmaRegistrations* last) { delete last; });
  made->arena_->observe(made);
  return made;
}

RdmaRegistrations::RdmaRegistrations(std::shared_ptr<RdmaDomain> domain,
                                     std::shared_ptr<Arena> arena, MemoryWatch* watch,
                                     size_t max_bytes)
    : domain_(std::move(domain)), arena_(std::move(arena)), watch_(watch), max_bytes_(max_bytes) {
  others_.reserve(max_others);
}

RdmaRegistrations::~RdmaRegistrations() {
  for (const Other& other : others_) watch_->forget(other.range);
}

RdmaRegistrations::Registration::Registration(RdmaDomain& its_domain, const std::byte* begin,
                                              size_t num_bytes)
    : domain(its_domain),
      region(
          domain.register_memory(reinterpret_cast<uint64_t>(begin), num_bytes,
                                 access_local_write | access_remote_write | access_remote_read)) {}

RegisteredMemory::Use RdmaRegistrations::use_of(const RegistrationPtr& registration,
                                                const std::byte* address) {
  const MemoryRegion& region = registration->region;
  return {reinterpret_cast<uint64_t>(address), region.lkey, region.rkey, registration};
}

std::optional<RegisteredMemory::Use> RdmaRegistrations::find(const std::byte* address,
                                                             size_t num_bytes) {
  std::lock_guard lock(mutex_);
  if (std::optional<Arena::Place> place = arena_->place_of(address, num_bytes)) {
    auto found = entries_.find(place->allocated);
    if (found == entries_.end()) {
      RegistrationPtr made = make(place->allocated, place->num_bytes);
      size_t length = made ? place->num_bytes : 0;
      found = entries_.emplace(place->allocated, CachedRegistration{std::move(made), length}).first;
    }
    CachedRegistration& entry = found->second;
    entry.used_at = ++num_uses_;
    if (!entry.registration) return std::nullopt;
    return use_of(entry.registration, place->address);
  }
  sweep();
  for (Other& other : others_) {
    if (!other.holds(address, num_bytes)) continue;
    other.used_at = ++num_uses_;
    return use_of(other.registration, address);
  }
  return std::nullopt;
}

void RdmaRegistrations::expect(const std::byte* address, size_t num_bytes) {
  if (watch_ == nullptr || num_bytes < min_other_bytes || num_bytes > max_bytes_) return;
  if (arena_->offset_of(address, num_bytes)) return;
  auto first = (reinterpret_cast<uintptr_t>(address) + page - 1) / page * page;
  auto last = (reinterpret_cast<uintptr_t>(address) + num_bytes) / page * page;
  const auto* begin = reinterpret_cast<const std::byte*>(first);
  num_bytes = last - first;
  std::lock_guard lock(mutex_);
  sweep();
  auto holds = [&](const Other& other) { return other.holds(begin, num_bytes); };
  if (std::any_of(others_.begin(), others_.end(), holds)) return;
  if (!was_seen(begin, num_bytes)) return;
  // Parts of it that earlier calls used.
  for (size_t i = others_.size(); i-- > 0;) {
    bool is_part = others_[i].begin >= begin && others_[i].begin < begin + num_bytes;
    if (is_part) drop(others_.begin() + static_cast<long>(i));
  }
  // First the watch, to detect memory that is unmapped during registration.
  std::optional<size_t> range = watch_->watch(begin, num_bytes);
  if (!range) return see({begin, num_bytes, true});
  if (RegistrationPtr made = make(begin, num_bytes)) {
    if (others_.size() == max_others) {
      auto oldest =
          std::min_element(others_.begin(), others_.end(),
                           [](const Other& a, const Other& b) { return a.used_at < b.used_at; });
      drop(oldest);
    }
    others_.push_back({begin, num_bytes, std::move(made), *range, ++num_uses_});
  } else {
    watch_->forget(*range);
    see({begin, num_bytes, true});
  }
}

// Memory of a single call is not worth registering: it is registered at its second use.
bool RdmaRegistrations::was_seen(const std::byte* begin, size_t num_bytes) {
  auto is_same = [&](const Seen& one) { return one.begin == begin && one.num_bytes == num_bytes; };
  auto found = std::find_if(seen_.begin(), seen_.end(), is_same);
  if (found == seen_.end()) {
    see({begin, num_bytes});
    return false;
  }
  if (found->is_refused) return false;
  *found = {};
  return true;
}

RdmaRegistrations::RegistrationPtr RdmaRegistrations::make(const std::byte* begin,
                                                           size_t num_bytes) {
  if (num_bytes > max_bytes_) return nullptr;
  make_room(num_bytes);
  try {
    auto made = std::make_shared<const Registration>(*domain_, begin, num_bytes);
    num_bytes_ += num_bytes;
    return made;
  } catch (const RdmaError&) {
    return nullptr;  // its messages are copied
  }
}

void RdmaRegistrations::make_room(size_t num_bytes) {
  while (num_bytes_ + num_bytes > max_bytes_) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!entry->second.registration) continue;
      if (oldest == entries_.end() || entry->second.used_at < oldest->second.used_at) {
        oldest = entry;
      }
    }
    auto other =
        std::min_element(others_.begin(), others_.end(),
                         [](const Other& a, const Other& b) { return a.used_at < b.used_at; });
    bool takes_other = other != others_.end() &&
                       (oldest == entries_.end() || other->used_at < oldest->second.used_at);
    if (takes_other) {
      drop(other);
    } else {
      num_bytes_ -= oldest->second.num_bytes;
      entries_.erase(oldest);
    }
  }
}

// Drops registrations of unmapped memory.
void RdmaRegistrations::sweep() {
  if (others_.empty() || watch_->num_gone() == num_gone_) return;
  num_gone_ = watch_->num_gone();
  for (size_t i = others_.size(); i-- > 0;) {
    if (!watch_->is_whole(others_[i].range)) drop(others_.begin() + static_cast<long>(i));
  }
}

void RdmaRegistrations::drop(std::vector<Other>::iterator other) {
  num_bytes_ -= other->num_bytes;
  watch_->forget(other->range);
  others_.erase(other);
}

void RdmaRegistrations::released(const std::byte* allocated) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(allocated);
  if (found == entries_.end()) return;
  num_bytes_ -= found->second.num_bytes;
  entries_.erase(found);
}

size_t RdmaRegistrations::num_bytes() {
  std::lock_guard lock(mutex_);
  sweep();
  return num_bytes_;
}

}  // namespace hccl
