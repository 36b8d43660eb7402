// How the large payloads of a call travel inside a node: which way is fastest is found by trial.
//
// It depends on the processor, its caches, how far apart the cores are, the pages that the payload
// lies in, and how many ranks share a core. Thresholds that were measured on one machine made calls
// take up to twice as long on another. So after a few calls of a kind, in the mode that is mostly best, the
// next ones try each mode in turns, and the fastest one stays for a while.
//
// A mode is the sender's, and a receiver takes what comes. All ranks make the same calls in the same order, so
// they try the same mode at the same time. Each then says what it took, and all choose by the slowest rank of
// their node: where ranks chose apart, calls took up to twice as long, and the root of a broadcast, which runs
// ahead, sees little of what a mode costs its readers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/plan.h"
#include "lanes/lane.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

// Touched by the driver only.
class CopyModes {
 public:
  // `mine`: where this rank says what its trials took.
  explicit CopyModes(std::shared_ptr<Segment> mine) : mine_(std::move(mine)) {}

  // Another rank of the node. Before the first call.
  void add_peer(std::shared_ptr<Segment> theirs) { theirs_.push_back(std::move(theirs)); }
  // Some peer can read this process's memory. Before the first call.
  void allow_single() { modes_[1] = CopyMode::single; }
  // Ranks of the node share cores. Before the first call; the same on all ranks of the node.
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }

  // Of the next call, the one of this number.
  CopyMode begin(const Call& call, uint64_t sequence);
  // It took so long, with all waits: what one rank saves another may have to wait for.
  void end(uint64_t elapsed_ns);
  // It failed.
  void abandon() { active_ = nullptr; }

  // A call of fewer bytes has no large payloads.
  static constexpr size_t min_bytes = 32768;
  // Each mode runs so many calls in a row, in each of several rounds. What the first of a row take depends on
  // the mode before, so they do not count. Of long calls fewer are enough.
  static constexpr size_t calls_in_row = 8, num_ignored = 2, num_rounds = 5;
  static constexpr size_t long_calls_in_row = 4, num_long_rounds = 3;
  static constexpr size_t long_bytes = 1 << 20;
  // A call of as many bytes does not stay in a core's cache.
  static constexpr size_t min_uncached_bytes = 4 << 20;
  // Calls before the first trial: few calls of a kind do not bear the cost of one, and the first are slower.
  static constexpr uint64_t first_stay = 100;
  // Calls until the next trial; doubles each time.
  static constexpr uint64_t shortest_stay = 1000, longest_stay = 16000;

 private:
  struct Trial {
    std::array<std::array<uint64_t, num_rounds>, num_copy_modes> rows_ns{};
    size_t next = 0;  // call of the trial
    CopyMode choice = CopyMode::cached;
    uint64_t number = 0;  // of its first call: the same on all ranks
    uint64_t stay = shortest_stay;
    uint64_t num_left = 0;  // calls until the next trial
    bool is_long = false;
    bool is_agreed = true;
    size_t row_length() const { return is_long ? long_calls_in_row : calls_in_row; }
    size_t rounds() const { return is_long ? num_long_rounds : num_rounds; }
  };
  struct Kind {
    const Plan* plan;
    int size_class;  // calls of at most twice the bytes
    bool operator==(const Kind&) const = default;
  };
  struct Hash {
    size_t operator()(const Kind& kind) const {
      return std::hash<const void*>()(kind.plan) ^ (static_cast<size_t>(kind.size_class) << 57);
    }
  };

  // More kinds are forgotten all at once: a trial is cheap.
  static constexpr size_t most_kinds = 256;

  CopyMode usual_mode(const Plan& plan, size_t num_bytes) const;
  void decide(Trial& trial);
  void agree(Trial& trial);

  std::unordered_map<Kind, Trial, Hash> trials_;
  Trial* active_ = nullptr;
  bool is_crowded_ = false;
  // Those that are tried. Where the kernel may copy, `streamed` was never the fastest. `single` comes before what
  // leaves data outside the caches: after that it took a dozen calls to reach its speed.
  std::array<CopyMode, 3> modes_{CopyMode::cached, CopyMode::streamed, CopyMode::half_streamed};
  const std::shared_ptr<Segment> mine_;
  std::vector<std::shared_ptr<Segment>> theirs_;
};

}  // namespace hccl
