#include "engine/copy_modes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hccl {

CopyMode CopyModes::begin(const Call& call) {
  active_ = nullptr;
  if (num_modes_ == 1 || call.compression != Compression::none) return CopyMode::cached;
  size_t num_bytes = call.num_bytes();
  if (num_bytes < min_bytes) return CopyMode::cached;
  Kind kind{call.plan, static_cast<int>(std::bit_width(num_bytes))};
  auto found = trials_.find(kind);
  if (found == trials_.end()) {
    if (trials_.size() == most_kinds) trials_.clear();
    found = trials_.emplace(kind, Trial()).first;
    found->second.is_long = num_bytes >= long_bytes;
  }
  Trial& trial = found->second;
  if (trial.num_left > 0) {
    --trial.num_left;
    return trial.choice;
  }
  active_ = &trial;
  return static_cast<CopyMode>(trial.next / trial.row_length() % num_modes_);
}

void CopyModes::end(uint64_t elapsed_ns) {
  if (active_ == nullptr) return;
  Trial& trial = *std::exchange(active_, nullptr);
  int row = trial.next / trial.row_length();
  bool counts = trial.next++ % trial.row_length() > 0 || trial.is_long;
  auto mode = static_cast<size_t>(row % num_modes_), round = static_cast<size_t>(row / num_modes_);
  if (counts) trial.rows_ns[mode][round] += elapsed_ns;
  if (trial.next == trial.rounds() * num_modes_ * trial.row_length()) decide(trial);
}

// A long call takes most of its time for copies: the faster row tells. A shorter one may wait for ranks that
// compute for longer than any copy takes: a mode has to be faster in every row than the first one in any.
void CopyModes::decide(Trial& trial) {
  auto fastest = [&](CopyMode mode) {
    auto rows = trial.rows_ns[static_cast<size_t>(mode)].begin();
    return *std::min_element(rows, rows + trial.rounds());
  };
  auto time_of = [&](CopyMode mode) {
    auto& rows = trial.rows_ns[static_cast<size_t>(mode)];
    return trial.is_long ? fastest(mode) : *std::max_element(rows.begin(), rows.end());
  };
  uint64_t to_beat_ns = fastest(CopyMode::cached);
  if (trial.is_long) to_beat_ns = to_beat_ns * 19 / 20;  // less may be noise
  CopyMode choice = CopyMode::cached;
  for (int i = 1; i < num_modes_; ++i) {
    auto mode = static_cast<CopyMode>(i);
    if (time_of(mode) >= to_beat_ns) continue;
    choice = mode;
    to_beat_ns = time_of(mode);
  }
  trial.stay = choice == trial.choice ? std::min(2 * trial.stay, longest_stay) : shortest_stay;
  trial.choice = choice;
  trial.num_left = trial.stay;
  trial.next = 0;
  trial.rows_ns = {};
}

}  // namespace hccl
