// How the large payloads of a call travel inside a node: which way is fastest is found by trial.
//
// It depends on the processor, its caches, how far apart the cores are, the pages that the payload
// lies in, and how many ranks share a core. Thresholds that were measured on one machine made calls
// take up to twice as long on another. So after some calls of a kind, in the mode that is mostly
// best, the next ones try each mode in turns, and a mode that is clearly faster stays for a while.
// Of long calls few are made, so a quick trial comes first.
//
// A mode is the sender's, and a receiver takes what comes. All ranks make the same calls in the
// same order, so they try the same mode at the same time. Each then says what it took and which
// mode it had before, and all choose alike by what the slowest rank of their node took: where ranks
// chose apart, calls took up to twice as long. A rank that only sends, such as the root of a
// broadcast, says that no mode took any time: it runs ahead, and sees little of what a mode costs
// its readers. Calls whose blocks may differ in size count apart on each rank, and may be tried at
// different times.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/calls/plan.h"
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
  // This process can read some peer's memory. Before the first call.
  void allow_single() { modes_[1] = CopyMode::single; }
  // Ranks of the node share cores. Before the first call; the same on all ranks of the node.
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }

  // Of the next call, the one of this number.
  CopyMode begin(const Call& call, uint64_t sequence);
  // It took so long, with all waits: what one rank saves another may have to wait for.
  void end(uint64_t elapsed_ns);
  // It failed.
  void abandon() { active_ = nullptr; }

  // Calls of fewer bytes begin no trial: it would cost more than a mode gains. Ranks that share a
  // core need a longer trial.
  static constexpr size_t min_bytes = 8192, min_crowded_bytes = 32768;
  // Each mode runs so many calls in a row, in each of several rounds. What the first of a row take
  // depends on the mode before, so they do not count. A mode stays unless it takes more than
  // 1/`margin` longer than the fastest.
  struct Shape {
    size_t calls_in_row, num_ignored, num_rounds;
    uint64_t margin;
    size_t num_calls() const { return calls_in_row * num_rounds * num_copy_modes; }
  };
  static constexpr Shape short_calls{8, 2, 5, 8}, long_calls{4, 2, 3, 8}, quick{2, 1, 2, 4};
  // Ranks that share a core run ahead of each other by many calls.
  static constexpr Shape crowded_calls{32, 16, 3, 3};
  static constexpr size_t max_rounds = 5;
  static constexpr size_t long_bytes = 1 << 20;
  // A call of as many bytes does not stay in a core's cache.
  static constexpr size_t min_uncached_bytes = 4 << 20;
  // Of calls of as many bytes a quick trial would cost more than it gains.
  static constexpr size_t max_quick_bytes = 16 << 20;
  // Calls before the first trial: few calls of a kind do not bear the cost of one, and the first
  // are slower.
  static constexpr uint64_t first_stay = 100, first_quick_stay = 2;
  // Calls until the next trial; doubles each time. After a quick one they are `first_stay`.
  static constexpr uint64_t shortest_stay = 1000, longest_stay = 16000;

 private:
  struct Trial {
    std::array<std::array<uint64_t, max_rounds>, num_copy_modes> rows_ns{};  // by place in modes_
    Shape shape, later_shape;
    size_t next = 0;  // call of the trial
    CopyMode choice = CopyMode::cached, choice_before = CopyMode::cached;
    uint64_t margin = 0;   // of the trial that has ended
    ModeTimes times_ns{};  // that this rank said then
    uint64_t number = 0;   // of its first call: the same on all ranks
    uint64_t stay;         // calls from the end of this trial to the next one
    uint64_t num_left;     // calls until the next trial
    bool runs_ahead;       // this rank only sends: what it takes says how full its slots are
    bool sends;
    bool is_agreed = true;
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
  // Those that are tried. `single` comes before what leaves data outside the caches: after that it
  // took a dozen calls to reach its speed. Where the kernel may not copy, `cached` stands in its
  // place, so that all ranks take as many calls.
  std::array<CopyMode, num_copy_modes> modes_{CopyMode::cached, CopyMode::cached,
                                              CopyMode::sender_streamed, CopyMode::streamed,
                                              CopyMode::receiver_streamed};
  const std::shared_ptr<Segment> mine_;
  std::vector<std::shared_ptr<Segment>> theirs_;
};

}  // namespace hccl
