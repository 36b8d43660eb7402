// What happens next in virtual time: a heap of events, four children to a node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hccl::simulation {

struct Event {
  double at;
  // Orders events at one time by what alike ranks have in common: local rank, then message; looks
  // at a rank come before its messages.
  uint64_t order;
  uint64_t number;  // in the order of pushing, which decides the rest
  int what;
};

inline bool comes_before(const Event& one, const Event& other) {
  if (one.at != other.at) return one.at < other.at;
  return one.order != other.order ? one.order < other.order : one.number < other.number;
}

class Events {
 public:
  bool is_empty() const { return heap_.size() == has_hole_; }

  // Most events push one more, which takes their place: so that place is filled by the next push.
  Event take_next() {
    fill_hole();
    has_hole_ = true;
    return heap_.front();
  }

  void push(double at, uint64_t order, int what) {
    Event event{at, order, num_events_++, what};
    if (has_hole_) {
      has_hole_ = false;
      sink(event);
      return;
    }
    size_t place = heap_.size();
    heap_.push_back(event);
    while (place > 0 && comes_before(event, heap_[(place - 1) / fan_out])) {
      heap_[place] = heap_[(place - 1) / fan_out];
      place = (place - 1) / fan_out;
    }
    heap_[place] = event;
  }

 private:
  static constexpr size_t fan_out = 4;

  void fill_hole() {
    if (!has_hole_) return;
    has_hole_ = false;
    Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
  }

  // Puts an event into the place at the top, or below it.
  void sink(const Event& event) {
    size_t place = 0, size = heap_.size();
    for (;;) {
      size_t first = fan_out * place + 1;
      if (first >= size) break;
      size_t best = first, end = first + fan_out < size ? first + fan_out : size;
      for (size_t child = first + 1; child < end; ++child) {
        if (comes_before(heap_[child], heap_[best])) best = child;
      }
      if (!comes_before(heap_[best], event)) break;
      heap_[place] = heap_[best];
      place = best;
    }
    heap_[place] = event;
  }

  std::vector<Event> heap_;
  bool has_hole_ = false;  // at the top
  uint64_t num_events_ = 0;
};

}  // namespace hccl::simulation
