#include "lanes/shared_memory/outbox.h"

#include "lanes/shared_memory/shm.h"

namespace hccl {

Outbox::Outbox(std::shared_ptr<Segment> segment, int channel, std::shared_ptr<Distance> distance)
    : segment_(std::move(segment)), channel_(channel), distance_(std::move(distance)) {
  int num_slots = segment_->shape().num_slots;
  for (int i = 0; i < num_slots; ++i) {
    (i < SegmentShape::slots_in_turn ? in_turn_ : spare_).push_back(i);
  }
  slots_.resize(static_cast<size_t>(num_slots));
  num_freed_ = in_turn_.size();
}

void Outbox::reclaim() {
  num_reserved_ = 0;
  for (ShmLane* lane : lanes_) {
    lane->reclaim();
    num_reserved_ += !lane->holds_slot();
  }
}

int Outbox::write(std::span<const std::byte> payload, int num_readers, bool lane_holds_none) {
  // The slot reserved for this very lane counts for it.
  size_t num_in_turn = num_freed_ - num_taken_;
  if (num_in_turn + spare_.size() + lane_holds_none <= num_reserved_) return -1;
  int slot;
  if (num_in_turn > 0) {
    slot = in_turn_[num_taken_++ % in_turn_.size()];
  } else {
    slot = spare_.back();
    spare_.pop_back();
  }
  slots_[slot].num_readers = num_readers;
  // Each use of a slot takes the next part of it that is long enough.
  constexpr int parts = SegmentShape::parts_of_slot;
  size_t part_bytes = segment_->shape().part_bytes();
  int num_parts = static_cast<int>((payload.size() + part_bytes - 1) / part_bytes);
  int part = slot * parts + slots_[slot].num_uses++ % (parts / num_parts) * num_parts;
  distance_->copy_there(segment_->part(channel_, part, payload.size()), payload);
  return part;
}

}  // namespace hccl
