// The plans of one communicator by call; hccl_py/calls/plan_cache.py writes each at its first use.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/calls/requests.h"

namespace hccl {

// Numbers as in hccl_py/fingerprint.py; sends and recvs have no plan.
enum class Collective : uint8_t {
  all_reduce = 1,
  broadcast = 2,
  reduce = 3,
  all_gather = 4,
  reduce_scatter = 5,
  all_to_all = 6,
  gather = 7,
  scatter = 8,
  barrier = 9,
  send = 10,
  recv = 11,
};
inline constexpr const char* collective_names[] = {
    "",           "all_reduce", "broadcast", "reduce",  "all_gather", "reduce_scatter",
    "all_to_all", "gather",     "scatter",   "barrier", "send",       "recv"};

Collective collective_named(const std::string& name);

class PlanCache {
 public:
  struct Key {
    PyObject* kind;  // an ElementType; these live as long as the process
    size_t count;    // total number of elements; 0 if ranks cannot know it
    int32_t root;    // -1: none
    Collective collective;
    uint8_t op;
    uint8_t compression;
    bool even;  // blocks have one length on all ranks
    bool operator==(const Key&) const = default;
  };

  explicit PlanCache(uint8_t compression) : compression_(compression) {}

  // The Prepared, made at first use, by Python's write() if no call of another size serves; throws
  // its exceptions.
  nanobind::object find(const Key& key) {
    {
      nanobind::ft_lock_guard guard(mutex_);
      if (last_ != nullptr && last_->first == key) return last_->second;
      if (auto found = prepared_.find(key); found != prepared_.end()) {
        last_ = &*found;
        return found->second;
      }
    }
    return add(key);
  }
  void clear();
  uint8_t compression() const { return compression_; }  // default of calls

 private:
  static constexpr size_t capacity = 4096;  // more are sizes that do not recur
  nanobind::object add(const Key& key);
  nanobind::object write(const Key& key);
  std::optional<Prepared> derive(const Key& key);
  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };

  const uint8_t compression_;
  nanobind::ft_mutex mutex_;  // of what is below
  std::unordered_map<Key, nanobind::object, Hash> prepared_;
  // The last one found, without a hash.
  const std::pair<const Key, nanobind::object>* last_ = nullptr;
  // What Python wrote, with its number of elements, by keys of count 0.
  std::unordered_map<Key, std::vector<std::pair<size_t, Prepared>>, Hash> written_;
};

}  // namespace hccl
