// Splits the time of a running collective: waiting for stragglers, and moving data.
//
// A wait ends with a message. The first message of a sender in this call means that this rank
// waited for that sender, unless the sender had waited itself: each message reports how long
// stragglers have delayed its sender so far, and which one longest. So a straggler is identified
// over any number of hops, without comparing clocks. A later wait counts only as far as its message
// reports new waiting; otherwise data was in flight.
//
// Waits of up to about a microsecond are not counted, so that a call without stragglers reads no
// clock for this. Touched by the driver only, but for the counters.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/statistics.h"
#include "engine/calls/request.h"

namespace hccl {

// Of one call.
struct Waiting {
  uint64_t total_ns = 0;
  uint64_t until_ns = 0;     // when the last wait ended
  int straggler = any_rank;  // the rank that this rank waited for longest
};

class Stragglers {
 public:
  // Turns without progress that make a wait: when spinning, a turn is a memory read; else it may be
  // a time slice.
  static constexpr int spun_turns = 16;

  struct Peer {
    Counter waited_ns;   // for this rank, all collectives together
    Counter times_last;  // collectives in which it was waited for longest
  };

  Stragglers(int rank, int world_size)
      : rank_(rank),
        world_size_(world_size),
        peers_(std::make_unique<Peer[]>(static_cast<size_t>(world_size))),
        arrived_(static_cast<size_t>(world_size)) {}

  void begin(uint64_t sequence) {
    sequence_ = sequence;
    num_turns_ = 0;
    idle_since_ns_ = known_ns_ = longest_ns_ = 0;
    waiting_ = {};
  }

  // After each turn of the call.
  void turn(bool moved, bool spins) {
    if (moved) {
      num_turns_ = 0;
      idle_since_ns_ = 0;
    } else if (++num_turns_ == (spins ? spun_turns : 1)) {
      wait();
    }
  }
  // The driver goes to sleep.
  void sleeps() {
    if (sequence_ != 0) wait();
  }

  // A message of `peer` arrived with its report(), or `peer` took our first one.
  void arrive(int peer, uint64_t report) {
    uint64_t& arrived = arrived_[static_cast<size_t>(peer)];
    bool first = arrived != sequence_;
    arrived = sequence_;
    uint64_t their_ns = report >> rank_bits;
    if (idle_since_ns_ != 0) end_wait(peer, first, their_ns, static_cast<int>(report & rank_mask));
    known_ns_ = std::max(known_ns_, their_ns);
  }
  bool has_arrived(int peer) const { return arrived_[static_cast<size_t>(peer)] == sequence_; }
  bool waits() const { return idle_since_ns_ != 0; }
  // The value that each message of this rank carries.
  uint64_t report() const {
    return waiting_.total_ns << rank_bits | (static_cast<uint64_t>(waiting_.straggler) & rank_mask);
  }

  // The call has ended or failed.
  void end() {
    if (waiting_.straggler >= 0) of(waiting_.straggler).times_last.add(1);
    sequence_ = 0;
  }
  // The call fails while it waits for `rank`.
  void give_up(int rank) {
    if (sequence_ == 0 || idle_since_ns_ == 0 || rank < 0 || rank >= world_size_) return;
    end_wait(rank, !has_arrived(rank), 0, 0);
  }

  const Waiting& waiting() const { return waiting_; }
  Peer& of(int rank) const { return peers_[static_cast<size_t>(rank)]; }

 private:
  static constexpr int rank_bits = 16;  // of a report: the rank; above, nanoseconds
  static constexpr uint64_t rank_mask = (1 << rank_bits) - 1;

  void wait() {
    if (idle_since_ns_ == 0) idle_since_ns_ = steady_ns(Clock::now());
  }

  void end_wait(int peer, bool first, uint64_t their_ns, int their_straggler) {
    uint64_t now = steady_ns(Clock::now());
    uint64_t waited = now - idle_since_ns_;
    idle_since_ns_ = 0;
    num_turns_ = 0;
    uint64_t news = their_ns > known_ns_ ? their_ns - known_ns_ : 0;
    uint64_t theirs = their_straggler < world_size_ ? std::min(waited, news) : 0;
    uint64_t own = first ? waited - theirs : 0;
    if (their_straggler == rank_) theirs = 0;  // it waited for this rank
    if (theirs) blame(their_straggler, theirs);
    if (own) blame(peer, own);
    if (theirs || own) waiting_.until_ns = now;
  }

  void blame(int rank, uint64_t waited_ns) {
    waiting_.total_ns += waited_ns;
    of(rank).waited_ns.add(waited_ns);
    if (waited_ns <= longest_ns_) return;
    longest_ns_ = waited_ns;
    waiting_.straggler = rank;
  }

  const int rank_;
  const int world_size_;
  std::unique_ptr<Peer[]> peers_;
  std::vector<uint64_t> arrived_;  // by rank: the last collective in which a message came
  uint64_t sequence_ = 0;          // 0: none runs
  int num_turns_ = 0;
  uint64_t idle_since_ns_ = 0;  // 0: not waiting
  uint64_t known_ns_ = 0;       // the longest waiting that a message reported
  uint64_t longest_ns_ = 0;     // of one wait, for waiting_.straggler
  Waiting waiting_;
};

}  // namespace hccl
