// Whether the cores of a rank's peers are far away: in another group of cores, or on another
// socket.
//
// Where they are, a payload travels faster through memory than from cache to cache: its writer has
// to take every line back that a reader of the payload before has in its cache. On an EPYC, 64 KiB
// were written in 29 us between two groups of cores and in 7 within one; past the caches in 2.6,
// and read in at most 3.9. A single line would not suffice: if ranks share cores, it may come from
// any cache.
//
// So a rank times the begin of some payloads. A probe when ranks connect would not suffice: a
// virtual machine moved its cores apart and back within ten seconds (7 ns a line, then 20, then 7),
// and threads move too.
//
// One decision applies to all peers. A few far ones suffice, because one slow write costs as much
// as several fast ones save.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>

#include "base/copy.h"
#include "lanes/lane.h"

namespace hccl {

// Of a communicator or a queue pair; only its driving thread touches it.
class Distance {
 public:
  using Clock = std::chrono::steady_clock;

  // Below this, a copy past the caches costs more than it saves.
  static constexpr size_t min_bytes = 2048;

  // Ends the timing: the setting HCCL_CORES says whether the cores are far.
  void assume(bool is_far) {
    votes_ = is_far ? most_votes : -most_votes;
    is_assumed_ = true;
  }

  // Copies a payload to where peers read it, past the caches if they are far.
  void copy_there(std::byte* to, std::span<const std::byte> payload) {
    size_t num_bytes = payload.size();
    if (num_bytes >= min_bytes && !is_assumed_ && --writes_to_timing_ == 0) {
      size_t num_timed = std::min(num_bytes, timed_bytes);
      note(time_copy(to, payload.first(num_timed)), num_timed);
      to += num_timed;
      payload = payload.subspan(num_timed);
    }
    if (streams(num_bytes)) {
      copy_past_caches(to, payload.data(), payload.size());
    } else {
      copy(to, payload.data(), payload.size());
    }
  }
  bool streams(size_t num_bytes) const { return num_bytes >= min_bytes && is_far(); }
  // Before a call. If cores are far, payloads may not travel through slots at all, and no write is
  // timed. So every review_period some calls copy as if the cores were near.
  void review(Clock::time_point now) {
    if (!is_far() || is_assumed_ || now < next_review_) return;
    next_review_ = now + review_period;
    votes_ = 0;
    writes_to_timing_ = writes_to_warm_up;
  }
  // Votes by the time of a write of `num_bytes` through the caches.
  void note(Clock::duration took, size_t num_bytes) {
    bool is_slow = took > most_per_line * (num_bytes / line_bytes);
    votes_ = std::clamp(votes_ + (is_slow ? slow_votes : -1), -most_votes, most_votes);
    // The number varies: calls send to their peers in a fixed order, so a fixed number of writes
    // would time the same peer each time.
    unsigned usual = is_far() ? far_writes_per_timing : writes_per_timing;
    writes_to_timing_ = (votes_ > -slow_votes && !is_far() ? 1 : usual) + num_timed_++ % 3;
  }
  bool is_far() const { return votes_ > 0; }
  unsigned num_timed() const { return num_timed_; }

 private:
  // Reads the source first, and a byte of each page of the destination, so that only writes are
  // timed, and waits for the last of them to leave the core.
  static Clock::duration time_copy(std::byte* to, std::span<const std::byte> from) {
    auto read = [](const std::byte& byte) {
      static_cast<void>(*static_cast<const volatile std::byte*>(&byte));
    };
    for (size_t at = 0; at < from.size(); at += line_bytes) read(from[at]);
    for (size_t at = 0; at < from.size(); at += page_bytes) read(to[at]);
    read(to[from.size() - 1]);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Clock::time_point began = Clock::now();
    copy(to, from.data(), from.size());
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return Clock::now() - began;
  }

  static constexpr size_t timed_bytes = 8192, line_bytes = 64, page_bytes = 4096;
  // On an EPYC a line took 4 to 14 ns within a group of cores, and 20 to 31 between two.
  static constexpr auto most_per_line = std::chrono::nanoseconds(18);
  // The first write of a page is slow on near cores too, so the votes begin low.
  static constexpr int slow_votes = 3, most_votes = 16;
  static constexpr unsigned writes_per_timing = 4, far_writes_per_timing = 64;
  // A review of far cores costs about four calls of 256 KiB 30 us each. The first writes are not
  // timed: slots that were not used have left the caches.
  static constexpr auto review_period = std::chrono::milliseconds(100);
  static constexpr unsigned writes_to_warm_up = 8;

  bool is_assumed_ = false;
  int votes_ = -most_votes;
  unsigned writes_to_timing_ = 1;
  unsigned num_timed_ = 0;
  Clock::time_point next_review_{};
};

}  // namespace hccl
