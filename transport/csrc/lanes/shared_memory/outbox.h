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
  // Writes into a slot for that many lanes, and returns its part (segment.h); -1 if none is free.
  // `lane_holds_none`: it is for a lane that holds no other slot.
  int write(std::span<const std::byte> payload, int num_readers, bool lane_holds_none);
  // A reader of the payload at `part` is done.
  void done_reading(int part) {
    int slot = part / SegmentShape::parts_of_slot;
    if (--slots_[slot].num_readers > 0) return;
    if (slot < SegmentShape::slots_in_turn) {
      in_turn_[num_freed_++ % in_turn_.size()] = slot;
    } else {
      spare_.push_back(slot);
    }
  }

 private:
  const std::shared_ptr<Segment> segment_;
  const int channel_;
  const std::shared_ptr<Distance> distance_;
  struct Slot {
    int num_readers = 0;
    unsigned num_uses = 0;
  };
  std::vector<Slot> slots_;
  std::vector<int> in_turn_;  // a ring of free slots: the one freed first is used first
  size_t num_freed_, num_taken_ = 0;
  std::vector<int> spare_;  // free ones, for when none is left in the ring
  std::vector<ShmLane*> lanes_;
  size_t num_reserved_ = 0;
};

}  // namespace hccl
