// The memory of a call with scaled-down partial sums of an average, see collective.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>

namespace hccl {

class ScaledRanges {
 public:
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }

  // Calls `visit(begin, end, is_scaled)` for the parts of [begin, end), in order.
  template <class Visit>
  void visit_parts(std::byte* begin, std::byte* end, Visit visit) const {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second > begin) --next;
    for (; begin < end && next != ranges_.end() && next->first < end; ++next) {
      if (begin < next->first) visit(begin, next->first, false);
      std::byte* last = std::min(end, next->second);
      visit(std::max(begin, next->first), last, true);
      begin = last;
    }
    if (begin < end) visit(begin, end, false);
  }

  bool any(std::byte* begin, std::byte* end) const {
    bool found = false;
    visit_parts(begin, end, [&](std::byte*, std::byte*, bool is_scaled) { found |= is_scaled; });
    return found;
  }

  void set(std::byte* begin, std::byte* end, bool is_scaled) {
    if (begin == end || (!is_scaled && empty())) return;
    auto first = ranges_.upper_bound(begin);
    if (first != ranges_.begin() && std::prev(first)->second > begin) --first;
    while (first != ranges_.end() && first->first < end) {
      auto [its_begin, its_end] = *first;
      first = ranges_.erase(first);
      if (its_begin < begin) ranges_[its_begin] = begin;
      if (its_end > end) ranges_[end] = its_end;
    }
    if (is_scaled) ranges_[begin] = end;
  }

 private:
  std::map<std::byte*, std::byte*> ranges_;  // begin and end of each; disjoint
};

}  // namespace hccl
