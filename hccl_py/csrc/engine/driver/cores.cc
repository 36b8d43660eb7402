#include "engine/driver/cores.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "progress/idle.h"

namespace hccl {

namespace {

// With more ranks than cores every wait yields anyway, and only every n-th checks the cores.
constexpr unsigned waits_between_looks = 16;
constexpr auto move_check = std::chrono::milliseconds(10);
constexpr long preemptions_by_others = 2;  // in a check; each is a time slice of some ms

// Moves this thread to `core` at once; its affinity is unchanged.
void move_to(int core) {
  cpu_set_t allowed, only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<size_t>(core), &only);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (sched_setaffinity(0, sizeof only, &only) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace

Cores::Cores(int rank, std::shared_ptr<Segment> mine)
    : rank_(rank), mine_(std::move(mine)), cores_(usable_cores()) {}

bool Cores::settle() {
  bool crowded = static_cast<int>(peers_.size()) >= cores_;
  if (crowded && num_waits_++ % waits_between_looks != 0) return true;
  int here = static_cast<int>(mine_->note_core()) - 1;
  // The scheduler moved it, so its yields count.
  if (is_checked_ && here == left_) is_checked_ = false;
  if (is_checked_) review();
  int sharing = count_on(here);
  if (sharing == 0) return false;
  int fair = (static_cast<int>(peers_.size()) + cores_) / cores_;
  bool last = std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return peer.rank < rank_ || peer.core() != here;
  });
  if (sharing < fair || !last) return true;
  leave(here);
  return count_on(static_cast<int>(mine_->note_core()) - 1) != 0;
}

int Cores::count_on(int core) const {
  return static_cast<int>(std::count_if(peers_.begin(), peers_.end(),
                                        [=](const Peer& peer) { return peer.core() == core; }));
}

// Of the cores that this thread may use, nearest by number where several are: -1 if there is none.
int Cores::emptiest_core(int here) const {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return -1;
  int best = -1, fewest = count_on(here);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (core == here || !CPU_ISSET(static_cast<size_t>(core), &allowed)) continue;
    int count = count_on(core);
    bool nearer = best != -1 && std::abs(core - here) < std::abs(best - here);
    if (count < fewest || (count == fewest && nearer)) {
      best = core;
      fewest = count;
    }
  }
  return best;
}

void Cores::leave(int here) {
  Time now = std::chrono::steady_clock::now();
  if (now < next_move_) return;
  next_move_ = now + pause_;
  pause_ = std::min(2 * pause_, longest_pause);
  int core = emptiest_core(here);
  if (core < 0) return;
  // Otherwise its yields count as preemptions.
  is_checked_ = static_cast<int>(peers_.size()) < cores_;
  check_ends_ = now + move_check;
  left_ = here;
  move_to(core);
  preemptions_ = count_preemptions();
}

// If another program took the core, sharing a core with a yielding rank is better.
void Cores::review() {
  Time now = std::chrono::steady_clock::now();
  if (now < check_ends_) return;
  is_checked_ = false;
  if (count_preemptions() - preemptions_ < preemptions_by_others) return;
  pause_ = longest_pause;
  next_move_ = now + pause_;
  move_to(left_);
  mine_->note_core();
}

}  // namespace hccl
