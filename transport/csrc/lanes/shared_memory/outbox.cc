#include "lanes/shared_memory/outbox.h"

#include "lanes/shared_memory/shm.h"

namespace hccl {

Outbox::Outbox(std::shared_ptr<Segment> segment, int channel, std::shared_ptr<Distance> distance)
    : segment_(std::move(segment)), channel_(channel), distance_(std::move(distance)) {
  int num_slots = segment_->shape().num_slots;
  readers_.resize(num_slots);
  for (int i = num_slots; i-- > 0;) free_.push_back(i);
}

void Outbox::reclaim() {
  num_reserved_ = 0;
  for (ShmLane* lane : lanes_) {
    lane->reclaim();
    num_reserved_ += !lane->holds_slot();
  }
}

int Outbox::write(const Header& header, std::span<const std::byte> payload, int num_readers,
                  bool lane_holds_none) {
  // The slot reserved for this very lane counts for it.
  if (free_.size() + lane_holds_none <= num_reserved_) return -1;
  int slot = free_.back();
  free_.pop_back();
  readers_[slot] = num_readers;
  distance_->copy_there(segment_->slot(channel_, slot), payload, header.copy_mode);
  return slot;
}

}  // namespace hccl
