#include "engine/lateness.h"

namespace hccl {

void Lateness::wait() {
  if (idle_since_ns_ == 0) idle_since_ns_ = steady_ns(Clock::now());
}

void Lateness::end_wait(int peer, bool first, uint64_t their_ns, int their_rank) {
  uint64_t now = steady_ns(Clock::now());
  uint64_t waited = now - idle_since_ns_;
  idle_since_ns_ = 0;
  num_turns_ = 0;
  uint64_t news = their_ns > known_ns_ ? their_ns - known_ns_ : 0;
  uint64_t theirs = their_rank < world_size_ ? std::min(waited, news) : 0;
  uint64_t own = first ? waited - theirs : 0;
  if (their_rank == rank_) theirs = 0;  // it waited for us: it was there, and this is the way back
  if (theirs) blame(their_rank, theirs);
  if (own) blame(peer, own);
  if (theirs || own) arrived_ns_ = now;
}

void Lateness::blame(int rank, uint64_t waited_ns) {
  late_ns_ += waited_ns;
  peer(rank).waited_ns.add(waited_ns);
  if (waited_ns > most_ns_) {
    most_ns_ = waited_ns;
    last_rank_ = rank;
  }
}

void Lateness::give_up(int rank) {
  if (sequence_ == 0) return;
  if (idle_since_ns_ != 0 && rank >= 0 && rank < world_size_) {
    end_wait(rank, !has_heard(rank), 0, 0);
  }
}

}  // namespace hccl
