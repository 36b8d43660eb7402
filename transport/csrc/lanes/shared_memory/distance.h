// Whether a peer's core is far away: in another group of cores, or on another socket.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace hccl {

// Where it is, a payload travels faster through memory than from cache to cache: the writer of a
// slot first has to take its lines back from the reader's cache (measured: 64 KiB in 19 us, by
// non-temporal stores in 9). Threads and whole virtual machines move, so it is asked all the time.
class Distance {
 public:
  // Looks at a counter that a peer writes, before anything else reads its line; `seen`: its value
  // at the last look. If the peer wrote it since, the line comes from that core's cache.
  void look_at(const std::atomic<uint64_t>& counter, uint64_t seen) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point began = Clock::now();
    bool is_news = counter.load(std::memory_order_acquire) != seen;
    if (is_news) note(Clock::now() - began);
  }
  void note(std::chrono::nanoseconds line_took) {
    votes_ = std::clamp(votes_ + (line_took > near ? 1 : -1), -most_votes, most_votes);
  }
  bool is_far() const { return votes_ > 0; }

 private:
  // Both with a look at the clock, about 25 ns: a near core takes 30 to 70 ns, a far one 150 and
  // more.
  static constexpr auto near = std::chrono::nanoseconds(120);
  static constexpr int most_votes = 4;  // a move is followed after as many messages
  int votes_ = 0;
};

}  // namespace hccl
