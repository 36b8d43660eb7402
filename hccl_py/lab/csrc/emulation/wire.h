// One direction of a NIC or of a link: computes when bytes will have left.
//
// A token bucket, kept as one time: when the wire is free again. Taking bytes moves that time, so a
// wire needs no timer of its own. Bytes that pass several wires leave with the latest of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hccl {

// What Ethernet, IPv4 and TCP with timestamps add to each packet of 1500 bytes, as Linux's token
// bucket and a switch's limit count it: no preamble, no gap, no checksum. A network card's line
// rate is lower by another 24 bytes a packet.
inline constexpr size_t header_bytes = 14 + 20 + 32;
inline constexpr size_t segment_bytes = 1500 - 20 - 32;

inline size_t bytes_with_headers(size_t num_bytes) {
  return num_bytes + (num_bytes + segment_bytes - 1) / segment_bytes * header_bytes;
}

class EmulatedWire {
 public:
  using Clock = std::chrono::steady_clock;

  // `burst_bytes`: bytes that an idle wire takes at once. `queue_bytes`: length of the queue before
  // it, which is at least that of least_queued.
  EmulatedWire(double bytes_per_s, double burst_bytes, double queue_bytes)
      : bytes_per_s_(bytes_per_s),
        burst_(time_of(burst_bytes)),
        queue_(std::max<Clock::duration>(time_of(queue_bytes), least_queued)) {}

  // Takes bytes, headers included. `there`: since when they wait, as this process may read late.
  // Returns when the last of them has left.
  Clock::time_point take(Clock::time_point there, size_t num_bytes) {
    free_at_ = std::max(free_at_, there - burst_) + time_of(static_cast<double>(num_bytes));
    num_bytes_ += num_bytes;
    return free_at_;
  }
  // When the wire takes more. Until then its queue is full, and bytes stay with their sender.
  Clock::time_point takes_at() const { return free_at_ - queue_; }

  double bytes_per_s() const { return bytes_per_s_; }
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  // Covers the time in which this process waits for a core.
  static constexpr auto least_queued = std::chrono::milliseconds(4);

  Clock::duration time_of(double num_bytes) const {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(num_bytes / bytes_per_s_));
  }

  const double bytes_per_s_;
  const Clock::duration burst_;
  const Clock::duration queue_;
  Clock::time_point free_at_{};
  uint64_t num_bytes_ = 0;
};

}  // namespace hccl
