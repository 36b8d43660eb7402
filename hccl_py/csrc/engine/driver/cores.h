// Which core a rank waits on, among the cores of its node's ranks.
//
// Ranks that take turns on one core by yields look to the scheduler like one busy program. It left
// two of them together for 10 to 60 ms while another core was idle, and a call took 8 us instead
// of 2. So the last of too many ranks on one core moves itself, and its thread keeps the cores it
// may use.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lanes/shared_memory/segment.h"

namespace hccl {

// For the driving thread.
class Cores {
 public:
  Cores(int rank, std::shared_ptr<Segment> mine);
  // The cores of all ranks together, each of which may be bound to some; default: this process's.
  void set_usable(int cores) { cores_ = cores; }
  void add_peer(int rank, std::shared_ptr<Segment> theirs) {
    peers_.push_back({rank, std::move(theirs)});
  }
  void clear() { peers_.clear(); }

  // Before a wait: moves off a core with too many ranks. True if another rank is on this core.
  bool settle();

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Pause = std::chrono::milliseconds;
  static constexpr Pause shortest_pause{4}, longest_pause{1000};

  struct Peer {
    int rank;
    std::shared_ptr<Segment> segment;
    int core() const {
      return static_cast<int>(segment->header().core.load(std::memory_order_relaxed)) - 1;
    }
  };
  int count_on(int core) const;
  int emptiest_core(int here) const;
  void leave(int here);
  void review();

  const int rank_;
  const std::shared_ptr<Segment> mine_;
  std::vector<Peer> peers_;
  int cores_;                     // that the ranks may use between them
  Pause pause_ = shortest_pause;  // after the next move; a scheduler that moves it back has reasons
  Time next_move_{};
  unsigned num_waits_ = 0;
  // The last move is checked: another program may want that core.
  bool is_checked_ = false;
  Time check_ends_{};
  int left_ = 0;          // the core before
  long preemptions_ = 0;  // of this thread, at the move
};

}  // namespace hccl
