// The memory model: for each location the stores in modification order, and which of them a load
// may read.
//
// A load may read any store that is not older than one that happens before it, or than one that
// this thread or a thread before it has read (coherence). Release and acquire, fences and release
// sequences follow C++20. The modification order is the order of execution.
//
// The total order of seq_cst accesses is any that C++20 allows: a load may read past a seq_cst
// store that ran earlier, unless what happens before, and what was read, puts the store first.
// Fences are ordered as they run.
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
  size_t step = 0;       // of the execution
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

// A seq_cst access to a location. `place`: stores are at twice their index, loads right after the
// store that they read, so those of one location are ordered by place.
struct Ordered {
  const Location* location;
  int thread;
  uint32_t time;
  uint32_t place;
  Clock clock;

  bool comes_before(const Ordered& other) const {
    if (time <= other.clock[thread]) return true;
    return location == other.location && place < other.place;
  }
};

class Memory {
 public:
  void reset(int num_threads) {
    num_threads_ = num_threads;
    views_.fill({});
    for (int i = 0; i < num_threads; ++i) tick(i);  // time 0 is before all threads
    fences_ = {};
    total_order_ = 0;
    ordered_.clear();
  }
  View& view(int thread) { return views_[static_cast<size_t>(thread)]; }

  // The oldest store that the thread may read. `follows(step)`: whether this access depends on that
  // step. Where it does not, another execution has them in the other order.
  template <class Follows>
  uint32_t oldest(const Location& location, int thread, int order, Follows follows) {
    const View& mine = view(thread);
    Clock known = mine.clock;
    known.join(mine.fenced);
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
    for (uint32_t i = location.last(); i > found; --i) {
      const Store& store = location.stores[i];
      bool is_fenced = store.total_order != 0 && store.total_order <= mine.fenced_at;
      bool is_ordered = order == seq_cst && store.total_order != 0 &&
                        (!follows(store.step) || !may_come_before(location, thread, i));
      if (is_fenced || is_ordered) return i;
    }
    return found;
  }

  void see(Location& location, int thread, uint32_t index) {
    location.seen[static_cast<size_t>(thread)].push_back({view(thread).clock[thread], index});
  }

  uint64_t load(Location& location, int thread, int order, uint32_t index) {
    tick(thread);
    see(location, thread, index);
    note_ordered(location, thread, order, 2 * index + 1);
    const Store& store = location.stores[index];
    View& mine = view(thread);
    (acquires(order) ? mine.clock : mine.pending).join(store.releases);
    return store.value;
  }

  void store(Location& location, int thread, int order, uint64_t value, size_t step,
             bool is_update = false) {
    tick(thread);
    View& mine = view(thread);
    Store next{value, releases(order) ? mine.clock : mine.released, step, 0};
    if (is_update) next.releases.join(location.stores.back().releases);
    if (order == seq_cst) next.total_order = ++total_order_;
    location.stores.push_back(next);
    note_ordered(location, thread, order, 2 * location.last());
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
  void note_ordered(const Location& location, int thread, int order, uint32_t place) {
    const Clock& clock = view(thread).clock;
    if (order == seq_cst) ordered_.push_back({&location, thread, clock[thread], place, clock});
  }

  // Whether a seq_cst load that reads a store before `index` contradicts no total order: it then
  // comes before that store and its readers.
  bool may_come_before(const Location& location, int thread, uint32_t index) {
    Clock clock = view(thread).clock;
    List<Ordered> left{{&location, thread, clock[thread] + 1, 2 * index - 1, clock}};
    List<char> is_reached(ordered_.size());
    while (!left.empty()) {
      Ordered later = left.back();
      left.pop_back();
      for (size_t i = 0; i < ordered_.size(); ++i) {
        if (is_reached[i] || !ordered_[i].comes_before(later)) continue;
        if (ordered_[i].location == &location && ordered_[i].place >= 2 * index) return false;
        is_reached[i] = 1;
        left.push_back(ordered_[i]);
      }
    }
    return true;
  }

  int num_threads_ = 0;
  std::array<View, max_threads> views_{};
  Clock fences_;
  uint32_t total_order_ = 0;
  List<Ordered> ordered_;
};

}  // namespace hccl::check
