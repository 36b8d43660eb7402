// What the progress thread drives while no other thread does.
#pragma once

#include "progress/sleep.h"

namespace hccl {

class Drivable {
 public:
  enum class Turn {
    moved,
    waiting,   // nothing moved, but a caller waits for it: turn again soon
    quiet,     // nothing moved, and a sleep may begin at once
    not_mine,  // another thread drives it, or nothing is left: until the next kick()
  };

  virtual ~Drivable() = default;
  // Moves what can move; returns at once.
  virtual Turn progress_turn() = 0;
  // Announces a sleep and checks once more. False: do not sleep.
  virtual bool prepare_sleep(Sleep& sleep) = 0;
};

}  // namespace hccl
