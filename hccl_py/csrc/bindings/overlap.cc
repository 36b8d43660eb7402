// Which blocks of a call share memory, although one of them is written.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/known_calls.h"
#include "bindings/requests.h"

namespace nb = nanobind;

namespace hccl {

namespace {

bool meet(const std::byte* one, size_t its_bytes, const std::byte* other, size_t other_bytes) {
  return one < other + other_bytes && other < one + its_bytes;
}

bool are_disjoint(const EqualBlocks& blocks, size_t block_bytes) {
  if (blocks.each == nullptr) return true;
  std::array<const std::byte*, KnownCalls::most_listed> sorted;
  auto end = std::copy_n(blocks.each, blocks.num_blocks, sorted.begin());
  std::sort(sorted.begin(), end);
  auto meets_next = [&](const std::byte* one, const std::byte* next) {
    return one + block_bytes > next;
  };
  return std::adjacent_find(sorted.begin(), end, meets_next) == end;
}

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
  // The outputs are apart by now, so their ends are in order too.
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

}  // namespace

bool are_apart(const EqualBlocks& outputs, const EqualBlocks& inputs, size_t block_bytes,
               size_t rank) {
  if (block_bytes == 0) return true;
  if (!are_disjoint(outputs, block_bytes)) return false;
  bool one_output = outputs.num_blocks == 1, one_input = inputs.num_blocks == 1;
  if (!one_output && !one_input) {
    return !meet(outputs.address, outputs.num_blocks * block_bytes, inputs.address,
                 inputs.num_blocks * block_bytes);
  }
  const EqualBlocks& many = one_output ? inputs : outputs;
  const std::byte* one = (one_output ? outputs : inputs).address;
  if (many.each == nullptr) {
    return one == many.block(rank, block_bytes) ||
           !meet(one, block_bytes, many.address, many.num_blocks * block_bytes);
  }
  for (size_t i = 0; i < many.num_blocks; ++i) {
    bool may_be_same = i == rank && many.each[i] == one;
    if (!may_be_same && meet(one, block_bytes, many.each[i], block_bytes)) return false;
  }
  return true;
}

void bind_overlap(nb::module_& module) { module.def("find_overlap", &find_overlap); }

}  // namespace hccl
