// The memory model: for each location the stores in modification order, and which of them a load
// may read.
//
// A load may read any store that is not older than one that happens before it, or than one that
// this thread or a thread before it has read (coherence). Release and acquire, fences and release
// sequences follow C++20. The modification order is the order of execution, and so is the total
// order of seq_cst accesses.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "checker.h"

namespace hccl::check {

inline bool acquires(int order) { return order != relaxed && order != release; }
inline bool releases(int order) { return order >= release; }

// Memory of the checker's own, which outlives executions.
template <class T>
struct Malloc {
  using value_type = T;
  Malloc() = default;
  template <class Other>
  Malloc(const Malloc<Other>&) {}
  T* allocate(size_t count) { return static_cast<T*>(std::malloc(count * sizeof(T))); }
  void deallocate(T* memory, size_t) { std::free(memory); }
  bool operator==(const Malloc&) const { return true; }
};
template <class T>
using List = std::vector<T, Malloc<T>>;

struct Clock {
  std::array<uint32_t, max_threads> at{};
  uint32_t& operator[](int thread) { return at[static_cast<size_t>(thread)]; }
  uint32_t operator[](int thread) const { return at[static_cast<size_t>(thread)]; }
  void join(const Clock& other) {
    for (int i = 0; i < max_threads; ++i) (*this)[i] = std::max((*this)[i], other[i]);
  }
};

struct Store {
  uint64_t value;
  Clock releases;        // what a thread that acquires it learns
  uint32_t total_order;  // among seq_cst accesses; 0: it is none
};

struct Seen {
  uint32_t time;   // of the thread
  uint32_t index;  // of the store that it read or wrote then
};

struct Location {
  uintptr_t address = 0;
  int num_bytes = 0;
  List<Store> stores;
  std::array<List<Seen>, max_threads> seen;

  uint32_t last() const { return static_cast<uint32_t>(stores.size()) - 1; }
};

struct View {
  Clock clock;             // happens before the next access
  Clock released;          // by a release fence
  Clock pending;           // what an acquire fence would learn
  Clock fenced;            // what seq_cst fences before this thread's last one have seen
  uint32_t fenced_at = 0;  // in the total order
};

class Memory {
 public:
  void reset(int num_threads) {
    num_threads_ = num_threads;
    views_.fill({});
    for (int i = 0; i < num_threads; ++i) tick(i);  // time 0 is before all threads
    fences_ = {};
    total_order_ = 0;
  }
  View& view(int thread) { return views_[static_cast<size_t>(thread)]; }

  // The oldest store that the thread may read.
  uint32_t oldest(const Location& location, int thread, int order) const {
    const View& view = views_[static_cast<size_t>(thread)];
    Clock known = view.clock;
    known.join(view.fenced);
    if (order == seq_cst) known.join(fences_);
    uint32_t found = 0;
    for (int other = 0; other < num_threads_; ++other) {
      const auto& seen = location.seen[static_cast<size_t>(other)];
      for (size_t i = seen.size(); i-- > 0;) {
        if (seen[i].time > known[other]) continue;
        found = std::max(found, seen[i].index);
        break;
      }
    }
    uint32_t limit = order == seq_cst ? UINT32_MAX : view.fenced_at;
    for (uint32_t i = location.last(); i > found; --i) {
      uint32_t at = location.stores[i].total_order;
      if (at != 0 && at <= limit) return i;
    }
    return found;
  }

  void see(Location& location, int thread, uint32_t index) {
    location.seen[static_cast<size_t>(thread)].push_back({view(thread).clock[thread], index});
  }

  uint64_t load(Location& location, int thread, int order, uint32_t index) {
    tick(thread);
    see(location, thread, index);
    const Store& store = location.stores[index];
    View& mine = view(thread);
    (acquires(order) ? mine.clock : mine.pending).join(store.releases);
    return store.value;
  }

  void store(Location& location, int thread, int order, uint64_t value, bool is_update = false) {
    tick(thread);
    View& mine = view(thread);
    Store next{value, releases(order) ? mine.clock : mine.released, 0};
    if (is_update) next.releases.join(location.stores.back().releases);
    if (order == seq_cst) next.total_order = ++total_order_;
    location.stores.push_back(next);
    see(location, thread, location.last());
    tick(thread);
  }

  void fence(int thread, int order) {
    tick(thread);
    View& mine = view(thread);
    if (acquires(order)) mine.clock.join(mine.pending);
    if (releases(order)) mine.released = mine.clock;
    if (order != seq_cst) return;
    fences_.join(mine.clock);
    mine.fenced.join(fences_);
    fences_ = mine.fenced;
    mine.fenced_at = ++total_order_;
    tick(thread);
  }

  void tick(int thread) { ++view(thread).clock[thread]; }

 private:
  int num_threads_ = 0;
  std::array<View, max_threads> views_{};
  Clock fences_;
  uint32_t total_order_ = 0;
};

}  // namespace hccl::check
