// The plans of one communicator by what is called. hccl_py/plan_cache.py writes those that are
// asked for the first time.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

namespace hccl {

// As hccl_py/fingerprint.py numbers them; sends and recvs have no plan.
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
    size_t count;    // elements of the whole; 0 where ranks cannot know it
    int32_t root;    // -1: it has none
    Collective collective;
    uint8_t op;
    uint8_t compression;
    bool even;  // blocks have one length on all ranks
    bool operator==(const Key&) const = default;
  };

  explicit PlanCache(uint8_t compression) : compression_(compression) {}

  // The Prepared; asks Python's write() for what it has not got, and throws what that raises.
  nanobind::object find(const Key& key) {
    if (last_ != nullptr && last_->first == key) return last_->second;
    auto found = prepared_.find(key);
    if (found == prepared_.end()) return write(key);
    last_ = &*found;
    return found->second;
  }
  void clear() { last_ = nullptr, prepared_.clear(); }
  uint8_t compression() const { return compression_; }  // of calls that do not say

 private:
  static constexpr size_t capacity = 4096;  // then come sizes that never come back
  nanobind::object write(const Key& key);
  struct Hash {
    size_t operator()(const Key& key) const noexcept;
  };

  const uint8_t compression_;
  std::unordered_map<Key, nanobind::object, Hash> prepared_;
  const std::pair<const Key, nanobind::object>* last_ = nullptr;  // found last, without a hash
};

}  // namespace hccl
