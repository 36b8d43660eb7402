// Splits the time of a running collective: waiting for ranks that came late, and moving data.
//
// A wait ends with a message. If it is the first one of its sender in this call, that rank was what
// we waited for; unless the sender had waited itself: each message says how long its sender has been
// held up by late ranks so far, and by whom most. So a late rank gets the blame over any number of
// hops, and no clocks are compared. A later wait is lateness only as far as the message that ends it
// tells of lateness we had not heard of; else data was on its way.
//
// Waits of about a microsecond or less are not seen, so that a call whose ranks are all there reads no
// clock for this. Touched by the driver only, but for the counters.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/request.h"
#include "base/statistics.h"

namespace hccl {

class Lateness {
 public:
  // How many turns without progress make a wait: spinning, a turn is a look at memory; else it may
  // be a time slice.
  static constexpr int spun_turns = 16;

  struct Peer {
    Counter waited_ns;   // for this rank, all collectives together
    Counter times_last;  // in how many collectives it was waited for longest
  };

  Lateness(int rank, int world_size)
      : rank_(rank),
        world_size_(world_size),
        peers_(std::make_unique<Peer[]>(static_cast<size_t>(world_size))),
        heard_(static_cast<size_t>(world_size)) {}

  void begin(uint64_t sequence) {
    sequence_ = sequence;
    num_turns_ = 0;
    idle_since_ns_ = late_ns_ = known_ns_ = most_ns_ = arrived_ns_ = 0;
    last_rank_ = any_rank;
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

  // A message of `peer` came, or `peer` took the first of ours.
  void heard(int peer, uint64_t told) {
    uint64_t& heard = heard_[static_cast<size_t>(peer)];
    bool first = heard != sequence_;
    heard = sequence_;
    uint64_t their_ns = told >> rank_bits;
    if (idle_since_ns_ != 0) end_wait(peer, first, their_ns, static_cast<int>(told & rank_mask));
    known_ns_ = std::max(known_ns_, their_ns);
  }
  bool has_heard(int peer) const { return heard_[static_cast<size_t>(peer)] == sequence_; }
  bool waits() const { return idle_since_ns_ != 0; }
  // What a message of ours tells.
  uint64_t told() const {
    return late_ns_ << rank_bits | (static_cast<uint64_t>(last_rank_) & rank_mask);
  }

  // The call is over, or will not go on.
  void end() {
    if (last_rank_ >= 0) peer(last_rank_).times_last.add(1);
    sequence_ = 0;
  }
  // It gives up while it waits for `rank`.
  void give_up(int rank);

  uint64_t late_ns() const { return late_ns_; }
  uint64_t arrived_ns() const { return arrived_ns_; }
  int last_rank() const { return last_rank_; }
  const Peer& of(int rank) const { return peers_[static_cast<size_t>(rank)]; }

 private:
  static constexpr int rank_bits = 16;  // of what a message tells: the rank; above, nanoseconds
  static constexpr uint64_t rank_mask = (1 << rank_bits) - 1;

  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void wait();
  void end_wait(int peer, bool first, uint64_t their_ns, int their_rank);
  void blame(int rank, uint64_t waited_ns);

  const int rank_;
  const int world_size_;
  std::unique_ptr<Peer[]> peers_;
  std::vector<uint64_t> heard_;  // by rank: the last collective in which it was heard
  uint64_t sequence_ = 0;        // 0: none runs
  int num_turns_ = 0;
  uint64_t idle_since_ns_ = 0;  // 0: not waiting
  uint64_t late_ns_ = 0;
  uint64_t known_ns_ = 0;  // the longest lateness that a message told of
  uint64_t most_ns_ = 0;   // of one wait, for last_rank_
  uint64_t arrived_ns_ = 0;
  int last_rank_ = any_rank;
};

}  // namespace hccl
