// The slots of one channel in a rank's segment, and the number of their readers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lanes/lane.h"
#include "lanes/shared_memory/distance.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

class ShmLane;

// One free slot stays reserved for every lane without a slot, so that a slow reader can never
// starve another lane: each lane always has room for one message.
class Outbox {
 public:
  Outbox(std::shared_ptr<Segment> segment, int channel, std::shared_ptr<Distance> distance);

  void add_lane(ShmLane* lane) { lanes_.push_back(lane); }
  // Frees every slot whose readers are done; call it before write().
  void reclaim();
  // Writes into a slot for that many lanes; -1 if none is free. `lane_holds_none`: it is for a lane
  // that holds no other slot.
  int write(const Header& header, std::span<const std::byte> payload, int num_readers,
            bool lane_holds_none);
  // A reader of `slot` is done.
  void done_reading(int slot) {
    if (--readers_[slot] == 0) free_.push_back(slot);
  }

 private:
  const std::shared_ptr<Segment> segment_;
  const int channel_;
  const std::shared_ptr<Distance> distance_;
  std::vector<int> free_;  // last in, first out: the slot freed last is still in the cache
  std::vector<int> readers_;
  std::vector<ShmLane*> lanes_;
  size_t num_reserved_ = 0;
};

}  // namespace hccl
