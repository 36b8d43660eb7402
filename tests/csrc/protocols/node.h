// Ranks of one node as threads of the checker, over the product's own segments.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checker/checker.h"
#include "lanes/lane.h"
#include "lanes/shared_memory/segment.h"
#include "progress/sleep.h"

namespace hccl::check {

inline constexpr uint64_t call = 7;  // the fingerprint of all messages

// How a rank waits: at once in its sleep, or by turns.
enum class Way { spins, sleeps };

// A program of the checker, and how it is named in its output.
struct Case {
  std::string name;
  Program program;
  std::set<std::string> sites{};  // once it was explored
};

inline const SegmentShape shape{3, 1, 2, 4096};

// Of each rank; they outlive executions, and all else of a rank is made anew for each.
inline std::array<std::shared_ptr<Segment>, 3> segments;

inline void make_segments() {
  for (auto& segment : segments) {
    segment = Segment::create(shape);
    auto* begin = reinterpret_cast<std::byte*>(&segment->header());
    std::byte* end = segment->part(shape.num_channels - 1,
                                   (shape.num_slots - 1) * SegmentShape::parts_of_slot, 0) +
                     shape.slot_bytes;
    share(begin, static_cast<size_t>(end - begin));
  }
}

enum class Turned { done, moved, waiting };

// As Communicator::drive and Communicator::sleep of the engine: turns, and before a sleep the
// announcement and one more turn. `is_starved`: a message waits for space.
template <class Turn, class IsStarved>
void drive(int rank, int event, Way way, Turn turn, IsStarved is_starved) {
  const auto& mine = segments[static_cast<size_t>(rank)];
  for (;;) {
    Turned turned = turn();
    if (turned == Turned::done) return;
    if (turned == Turned::moved) {
      moved();
      continue;
    }
    if (way == Way::spins) {
      wait();
      continue;
    }
    Sleep sleep(Sleeper::caller);
    mine->note_starved(is_starved());
    sleep.announce(mine);
    turned = turn();
    if (turned == Turned::done) return;
    if (turned == Turned::moved) continue;
    sleep.watch(event);
    sleep.wait(1000);
    Descriptor bell(event);
    clear_event(bell);
  }
}

}  // namespace hccl::check
