// Which thread runs next: depth-first search over executions, each run anew from its begin.
//
// Dynamic partial-order reduction with source sets and sleep sets (Abdulla et al., POPL 2014):
// where an access depends on an earlier one of another thread, and no third one orders them, the
// threads are also tried in the other order. test_litmus compares it with a search of all
// interleavings.
#pragma once

#include <bit>

#include "memory.h"

namespace hccl::check {

enum class Kind { load, store, update, fence, wait, await, choose };

// The next access of a thread.
struct Access {
  Kind kind = Kind::load;
  int order = seq_cst;
  uintptr_t address = 0;  // of wait: see `watched`
  int num_bytes = 0;
  int update = 0;  // which one
  uint64_t value = 0, expected = 0;
  int site = -1;
  List<uintptr_t> watched;
};

inline bool touches(const Access& one, uintptr_t address) {
  if (one.kind != Kind::wait) return one.address == address;
  return std::find(one.watched.begin(), one.watched.end(), address) != one.watched.end();
}

inline bool depend(const Access& one, const Access& other) {
  if (one.kind == Kind::choose || other.kind == Kind::choose) return false;
  if (one.kind == Kind::fence || other.kind == Kind::fence) {
    return one.order == seq_cst && other.order == seq_cst;
  }
  auto writes = [](const Access& a) { return a.kind == Kind::store || a.kind == Kind::update; };
  if (!writes(one) && !writes(other)) return false;
  return writes(one) ? touches(other, one.address) : touches(one, other.address);
}

struct Node {
  int thread = -1;
  uint32_t choice = 0, num_choices = 1;
  unsigned enabled = 0, asleep = 0, done = 0, wanted = 0;  // sets of threads
  Access access;
  Clock clock;  // of accesses that this one depends on
};

class Schedule {
 public:
  explicit Schedule(bool reduces) : reduces_(reduces) {}

  void begin() {
    depth_ = 0;
    clocks_.fill({});
  }
  bool replays() const { return depth_ < nodes_.size(); }
  size_t depth() const { return depth_; }
  const std::vector<Node, Malloc<Node>>& nodes() const { return nodes_; }

  // The node of the next step; `pending`: the next access of each thread. Null: all that is enabled
  // only repeats other executions.
  Node* next(unsigned enabled, const std::array<Access, max_threads>& pending) {
    if (replays()) {
      Node& node = nodes_[depth_];
      node.enabled = enabled;
      return &node;
    }
    Node node;
    node.enabled = enabled;
    if (reduces_ && depth_ > 0) node.asleep = still_asleep(nodes_[depth_ - 1], pending);
    unsigned awake = enabled & ~node.asleep;
    if (awake == 0) return nullptr;
    int last = depth_ > 0 ? nodes_[depth_ - 1].thread : 0;
    node.thread = (awake >> last & 1) != 0 ? last : std::countr_zero(awake);
    node.wanted = reduces_ ? 1u << node.thread : enabled;
    nodes_.push_back(std::move(node));
    return &nodes_.back();
  }

  // Of the node that next() returned, after num_choices is set.
  void executed(const Access& access) {
    Node& node = nodes_[depth_];
    Clock& clock = clocks_[static_cast<size_t>(node.thread)];
    for (size_t i = depth_; i-- > 0;) {
      const Node& earlier = nodes_[i];
      if (earlier.thread == node.thread || !depend(earlier.access, access)) continue;
      if (comes_after(clock, earlier)) continue;
      if (reduces_) want(i, node.thread, clock);
      clock.join(earlier.clock);
    }
    ++clock[node.thread];
    node.clock = clock;
    node.access = access;
    ++depth_;
  }

  // Whether the thread's next access comes after a step.
  bool follows(int thread, size_t step) const {
    return comes_after(clocks_[static_cast<size_t>(thread)], nodes_[step]);
  }

  // Goes to the next execution. False: there is none.
  bool backtrack() {
    nodes_.resize(depth_);
    while (!nodes_.empty()) {
      Node& node = nodes_.back();
      if (++node.choice < node.num_choices) return true;
      node.choice = 0;
      node.done |= 1u << node.thread;
      unsigned left = node.wanted & node.enabled & ~node.done & ~node.asleep;
      if (left != 0) {
        node.thread = std::countr_zero(left);
        node.num_choices = 1;
        return true;
      }
      nodes_.pop_back();
    }
    return false;
  }

 private:
  static unsigned still_asleep(const Node& parent, const std::array<Access, max_threads>& pending) {
    unsigned asleep = 0;
    for (unsigned left = (parent.asleep | parent.done) & ~(1u << parent.thread); left != 0;
         left &= left - 1) {
      int thread = std::countr_zero(left);
      if (!depend(parent.access, pending[static_cast<size_t>(thread)])) asleep |= 1u << thread;
    }
    return asleep;
  }

  // The next access, of `thread`, must also come before the step at `at`. It comes after the steps
  // in `clock`. Of those since `at` that do not depend on it, one that comes first must begin.
  void want(size_t at, int thread, const Clock& clock) {
    Node& node = nodes_[at];
    unsigned begins = 0, seen = 0;
    auto is_first = [&](const Clock& its, size_t end) {
      for (size_t i = at + 1; i < end; ++i) {
        if (!comes_after(nodes_[i].clock, node) && comes_after(its, nodes_[i])) return false;
      }
      return true;
    };
    for (size_t i = at + 1; i < depth_; ++i) {
      const Node& between = nodes_[i];
      if (comes_after(between.clock, node) || (seen >> between.thread & 1) != 0) continue;
      seen |= 1u << between.thread;
      if (is_first(between.clock, i)) begins |= 1u << between.thread;
    }
    if ((seen >> thread & 1) == 0 && is_first(clock, depth_)) begins |= 1u << thread;
    begins &= node.enabled;
    if (begins == 0 || (begins & node.wanted) != 0) return;
    bool is_itself = (begins >> thread & 1) != 0;
    node.wanted |= 1u << (is_itself ? thread : std::countr_zero(begins));
  }

  static bool comes_after(const Clock& clock, const Node& node) {
    return clock[node.thread] >= node.clock[node.thread];
  }

  const bool reduces_;
  std::vector<Node, Malloc<Node>> nodes_;  // of the current execution, and what is left of it
  size_t depth_ = 0;
  std::array<Clock, max_threads> clocks_{};
};

}  // namespace hccl::check
