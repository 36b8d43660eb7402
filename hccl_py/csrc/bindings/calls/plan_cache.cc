#include "bindings/calls/plan_cache.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace hccl {

namespace {

nb::handle_t<Prepared> find(PlanCache& cache, const std::string& collective, nb::handle kind,
                            uint8_t op, size_t count, std::optional<int> root, bool even,
                            uint8_t compression) {
  return cache.find(
      {kind.ptr(), count, root.value_or(-1), collective_named(collective), op, compression, even});
}

}  // namespace

Collective collective_named(const std::string& name) {
  auto found = std::find(std::begin(collective_names), std::end(collective_names), name);
  if (found == std::end(collective_names)) throw std::invalid_argument("no such collective");
  return static_cast<Collective>(found - std::begin(collective_names));
}

size_t PlanCache::Hash::operator()(const Key& key) const noexcept {
  constexpr uint64_t factor = 0x9e3779b97f4a7c15;  // of Fibonacci hashing
  uint64_t small = uint64_t{static_cast<uint32_t>(key.root)} << 32 |
                   static_cast<uint64_t>(key.collective) << 24 | uint64_t{key.op} << 16 |
                   uint64_t{key.compression} << 8 | uint64_t{key.even};
  uint64_t hash = (reinterpret_cast<uintptr_t>(key.kind) ^ small) * factor;
  return (hash ^ hash >> 32 ^ key.count) * factor >> 20;
}

void PlanCache::clear() {
  nb::ft_lock_guard guard(mutex_);
  last_ = nullptr;
  prepared_.clear();
  written_.clear();
}

std::optional<Prepared> PlanCache::derive(const Key& key) {
  Key of_any_count = key;
  of_any_count.count = 0;
  nb::ft_lock_guard guard(mutex_);
  auto found = written_.find(of_any_count);
  if (found == written_.end()) return std::nullopt;
  for (const auto& [count, one] : found->second) {
    if (one.least <= key.count && key.count <= one.most) return one.for_count(count, key.count);
  }
  return std::nullopt;
}

nb::object PlanCache::add(const Key& key) {
  std::optional<Prepared> derived = derive(key);
  nb::object made = derived ? nb::cast(std::move(*derived)) : write(key);
  if (prepared_.size() >= capacity) clear();
  nb::ft_lock_guard guard(mutex_);
  // Another thread may have added it.
  return prepared_.try_emplace(key, std::move(made)).first->second;
}

nb::object PlanCache::write(const Key& key) {
  nb::object root = key.root < 0 ? nb::object(nb::none()) : nb::object(nb::int_(key.root));
  nb::object made = nb::find(*this).attr("write")(
      collective_names[static_cast<size_t>(key.collective)], nb::handle(key.kind), key.op,
      key.count, root, key.even, key.compression);
  const Prepared& prepared = *nb::inst_ptr<Prepared>(made);
  if (prepared.most == 0) return made;
  Key of_any_count = key;
  of_any_count.count = 0;
  nb::ft_lock_guard guard(mutex_);
  written_[of_any_count].push_back({key.count, prepared});
  return made;
}

void bind_plan_cache(nb::module_& module) {
  nb::class_<PlanCache>(module, "PlanCache")
      .def(nb::init<uint8_t>())
      .def("find", &find)
      .def("clear", &PlanCache::clear);
}

}  // namespace hccl
