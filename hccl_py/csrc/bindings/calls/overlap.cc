// Finds blocks of a call that share memory, one of which is written.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/calls/requests.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// Address, bytes, and a number: an output and an input of one number may be the same memory.
using Block = std::tuple<uint64_t, size_t, size_t>;
// The first one, an output; the second one; whether that is an input.
using Overlap = std::tuple<size_t, size_t, bool>;

std::optional<Overlap> find_overlap(const std::vector<Block>& outputs,
                                    const std::vector<Block>& inputs) {
  auto begin = [](const Block& block) { return std::get<0>(block); };
  auto end = [](const Block& block) { return std::get<0>(block) + std::get<1>(block); };
  std::vector<size_t> order;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (std::get<1>(outputs[i]) > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(begin(outputs[a]), a) < std::pair(begin(outputs[b]), b);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    auto [first, second] = std::minmax(order[i - 1], order[i]);
    if (end(outputs[order[i - 1]]) > begin(outputs[order[i]])) return Overlap{first, second, false};
  }
  // The outputs are known to be apart, so their ends are in order too.
  for (size_t j = 0; j < inputs.size(); ++j) {
    const Block& input = inputs[j];
    if (std::get<1>(input) == 0) continue;
    auto i = std::partition_point(order.begin(), order.end(),
                                  [&](size_t k) { return end(outputs[k]) <= begin(input); });
    for (; i != order.end() && begin(outputs[*i]) < end(input); ++i) {
      if (outputs[*i] != input) return Overlap{*i, j, true};
    }
  }
  return std::nullopt;
}

// Whether blocks are adjacent, in order.
bool is_run(std::span<const Span> blocks, size_t unit_bytes) {
  auto is_gap = [unit_bytes](const Span& one, const Span& next) {
    return one.address + one.count * unit_bytes != next.address;
  };
  return std::adjacent_find(blocks.begin(), blocks.end(), is_gap) == blocks.end();
}

}  // namespace

bool are_apart(std::span<const Span> outputs, std::span<const Span> inputs, size_t unit_bytes,
               size_t rank, bool shares) {
  if (outputs.empty() || inputs.empty()) return true;
  // Every call runs this, and most pass by a few comparisons.
  auto end = [unit_bytes](const Span& last) { return last.address + last.count * unit_bytes; };
  if (is_run(outputs, unit_bytes) && is_run(inputs, unit_bytes)) {
    bool apart = end(outputs.back()) <= inputs.front().address ||
                 end(inputs.back()) <= outputs.front().address;
    if (apart) return true;
    if (shares && inputs.size() == 1 && inputs[0] == outputs[rank]) return true;
    if (shares && outputs.size() == 1 && outputs[0] == inputs[rank]) return true;
  }
  auto numbered = [&](std::span<const Span> blocks, size_t first) {
    std::vector<Block> made;
    size_t number = blocks.size() == 1 && shares ? rank : first;
    for (const Span& block : blocks) {
      made.emplace_back(reinterpret_cast<uint64_t>(block.address), block.count * unit_bytes,
                        number++);
    }
    return made;
  };
  return !find_overlap(numbered(outputs, 0), numbered(inputs, shares ? 0 : outputs.size()));
}

void bind_overlap(nb::module_& module) { module.def("find_overlap", &find_overlap); }

}  // namespace hccl
