#include "lanes/shm.h"

#include <cstring>

namespace hccl {

Outbox::Outbox(std::shared_ptr<Segment> segment, int channel)
    : segment_(std::move(segment)), channel_(channel) {
  int num_slots = segment_->shape().num_slots;
  readers_.resize(num_slots);
  for (int i = num_slots; i-- > 0;) free_.push_back(i);
}

void Outbox::add_lane(ShmLane* lane) {
  lanes_.push_back(lane);
  ++empty_lanes_;
}

int Outbox::take(bool lane_holds_none) {
  // The slot reserved for this very lane counts for it.
  size_t reserved = static_cast<size_t>(empty_lanes_) - (lane_holds_none ? 1 : 0);
  if (free_.size() <= reserved) return -1;
  int slot = free_.back();
  free_.pop_back();
  return slot;
}

int Outbox::take_for_many() {
  if (free_.size() <= static_cast<size_t>(empty_lanes_)) return -1;
  int slot = free_.back();
  free_.pop_back();
  return slot;
}

void Outbox::done_reading(int slot) {
  if (--readers_[slot] == 0) free_.push_back(slot);
}

void Outbox::reclaim() {
  for (ShmLane* lane : lanes_) lane->reclaim();
}

ShmLane::ShmLane(int peer, const Ends& ends, std::shared_ptr<Outbox> outbox,
                           Statistics& statistics)
    : QueuedLane(peer, ends.mine->shape().slot_bytes, statistics, statistics.shm),
      ends_(ends),
      outbox_(std::move(outbox)),
      out_(ends.mine->ring(ends.their_local_rank, ends.channel)),
      in_(ends.theirs->ring(ends.my_local_rank, ends.channel)),
      my_consumed_(ends.mine->consumed(ends.their_local_rank, ends.channel)),
      their_consumed_(ends.theirs->consumed(ends.my_local_rank, ends.channel)) {
  outbox_->add_lane(this);
}

void ShmLane::reclaim() {
  uint64_t consumed = their_consumed_.count.load(std::memory_order_seq_cst);
  if (consumed > sent_) throw LaneError(peer(), "a malformed counter in shared memory");
  for (; reclaimed_ < consumed; ++reclaimed_) {
    Sent sent = sent_slots_[reclaimed_ % ring_cells];
    if (sent.slot < 0) continue;
    outbox_->done_reading(sent.slot);
    if (!sent.shared && --own_slots_ == 0) outbox_->lane_became_empty();
  }
}

bool ShmLane::ring_is_full() {
  if (sent_ - reclaimed_ < ring_cells) return false;
  reclaim();
  return sent_ - reclaimed_ >= ring_cells;
}

void ShmLane::publish(const Header& header, const std::byte* payload, int slot, bool shared) {
  Cell& cell = out_[sent_ % ring_cells];
  cell.slot = slot;
  cell.header = header;
  if (slot < 0 && header.length) std::memcpy(cell.payload, payload, header.length);
  sent_slots_[sent_ % ring_cells] = {slot, shared};
  ++sent_;
  cell.sequence.store(static_cast<uint32_t>(sent_), std::memory_order_seq_cst);
  device_.messages.add(1);
  device_.bytes.add(header.length);
  ends_.their_doorbell->message_posted();
}

bool ShmLane::push(const Header& header, const std::byte* payload, size_t&) {
  if (ring_is_full()) return false;
  int slot = -1;
  if (header.length > inline_bytes) {
    outbox_->reclaim();  // may find that this lane holds none
    slot = outbox_->take(own_slots_ == 0);
    if (slot < 0) return false;
    outbox_->share(slot, 1);
    if (own_slots_++ == 0) outbox_->lane_was_filled();
    std::memcpy(outbox_->slot(slot), payload, header.length);
  }
  publish(header, payload, slot, false);
  return true;
}

bool ShmLane::post_send_to_all(std::span<Lane* const> lanes, const Header& header,
                                    const std::byte* payload) {
  if (header.length <= inline_bytes) return false;
  for (Lane* lane : lanes) {
    if (!lane->flushed() || static_cast<ShmLane*>(lane)->ring_is_full()) return false;
  }
  outbox_->reclaim();
  int slot = outbox_->take_for_many();
  if (slot < 0) return false;
  outbox_->share(slot, static_cast<int>(lanes.size()));
  std::memcpy(outbox_->slot(slot), payload, header.length);
  for (Lane* lane : lanes) {
    static_cast<ShmLane*>(lane)->publish(header, payload, slot, true);
  }
  return true;
}

const Header* ShmLane::peek() {
  if (peeked_ > received_) return &header_;
  const Cell& cell = in_[received_ % ring_cells];
  uint32_t expected = static_cast<uint32_t>(received_ + 1);
  if (cell.sequence.load(std::memory_order_seq_cst) != expected) return nullptr;
  header_ = cell.header;
  slot_ = cell.slot;
  size_t limit = slot_ < 0 ? inline_bytes : slot_bytes_;
  if (header_.length > limit || slot_ >= ends_.theirs->shape().num_slots) {
    throw LaneError(peer(), "a malformed message in shared memory");
  }
  peeked_ = received_ + 1;
  return &header_;
}

const std::byte* ShmLane::lend() {
  return slot_ < 0 ? in_[received_ % ring_cells].payload
                   : ends_.theirs->slot(ends_.channel, slot_);
}

bool ShmLane::receive(std::byte* destination) {
  if (header_.length) std::memcpy(destination, lend(), header_.length);
  return true;
}

uint64_t ShmLane::taken() {
  reclaim();
  return reclaimed_;
}

void ShmLane::release() {
  my_consumed_.count.store(++received_, std::memory_order_seq_cst);
  ends_.their_doorbell->space_freed();
}

}  // namespace hccl
