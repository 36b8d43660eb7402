// Whether the cores of a rank's peers are far away: in another group of cores, or on another
// socket.
//
// Where they are, a payload travels faster through memory than from cache to cache: its writer has
// to take every line back that a reader of the payload before has in its cache. Measured on an EPYC
// between two groups of cores: 64 KiB are written in 29 us, past the caches in 2.6, and read in 3.9
// either way; within a group they are written in 7. What tells the one from the other is how long
// such a write takes: a single line may come from anywhere once ranks share cores. Threads and
// whole virtual machines move, so it is asked all the time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>

#include "base/copy.h"
#include "lanes/lane.h"

namespace hccl {

// Of one rank; its driver's.
class Distance {
 public:
  // Copies a payload to where peers read it, past the caches if the mode or the distance says so.
  void copy_there(std::byte* to, std::span<const std::byte> payload, CopyMode mode) {
    using Clock = std::chrono::steady_clock;
    bool tells = payload.size() >= min_bytes && !sender_streams(mode);
    bool is_timed =
        tells && num_writes_++ % (is_far() ? far_writes_per_look : writes_per_look) == 0;
    if (sender_streams(mode) || (tells && is_far() && !is_timed)) {
      return copy_past_caches(to, payload.data(), payload.size());
    }
    Clock::time_point began = is_timed ? Clock::now() : Clock::time_point();
    copy(to, payload.data(), payload.size());
    if (is_timed) note(Clock::now() - began, payload.size());
  }
  // A write took so long.
  void note(std::chrono::nanoseconds took, size_t num_bytes) {
    bool is_slow = took > most_per_line * (num_bytes / line_bytes);
    votes_ = std::clamp(votes_ + (is_slow ? slow_votes : -1), -most_votes, most_votes);
  }
  bool is_far() const { return votes_ > 0; }

 private:
  // Shorter ones are written in the time that two looks at the clock take.
  static constexpr size_t min_bytes = 2048, line_bytes = 64;
  // 4 to 14 ns within a group of cores, whatever else the caches hold, and 24 to 30 between two.
  static constexpr auto most_per_line = std::chrono::nanoseconds(18);
  // Of ranks that share cores, many write what is read on their own core; a slow write costs as
  // much as several fast ones save.
  static constexpr int slow_votes = 3, most_votes = 8;
  static constexpr unsigned writes_per_look = 4, far_writes_per_look = 64;

  int votes_ = -most_votes;
  unsigned num_writes_ = 0;
};

}  // namespace hccl
