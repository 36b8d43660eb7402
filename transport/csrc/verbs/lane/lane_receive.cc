// The receiving half of LaneOverQueuePair.
#include <cstring>
#include <utility>

#include "verbs/lane/lane_over_queue_pair.h"

namespace hccl {

void LaneOverQueuePair::throw_malformed() const {
  throw LaneError(peer(), "a malformed message over its queue pair");
}

const Header* LaneOverQueuePair::peek() {
  if (peeked_) return &header_;
  if (arrived_ == released_) poll();
  if (arrived_ == released_) {
    throw_if_failed();
    is_starved_ = true;
    return nullptr;
  }
  parse();
  peeked_ = true;
  return &header_;
}

void LaneOverQueuePair::parse() {
  const std::byte* slot = slots_->in(released_);
  std::memcpy(&header_, slot, sizeof header_);
  form_ = forms_[released_ % num_slots];
  if (header_.length > slot_bytes_ || (form_ == announced && header_.length == 0)) {
    throw_malformed();
  }
  bool has_note = form_ == gathered || form_ == announced;
  bool has_payload = form_ == plain || form_ == gathered;
  size_t payload_at = sizeof header_ + (has_note ? sizeof note_ : 0);
  if (lengths_[released_ % num_slots] != payload_at + (has_payload ? header_.length : 0)) {
    throw_malformed();
  }
  note_ = {};
  if (has_note) std::memcpy(&note_, slot + sizeof header_, sizeof note_);
  payload_ = has_payload ? slot + payload_at : nullptr;
  if (form_ == answered) {
    if (asked_.number != released_ + 1 || asked_.num_bytes != header_.length) throw_malformed();
    payload_ = reinterpret_cast<const std::byte*>(asked_.address);
  }
}

// Reads an announced payload to `destination` if that is registered, else into the message's slot.
void LaneOverQueuePair::start_read(std::byte* destination) {
  Way& way = way_of(released_ + 1);
  std::byte* slot = slots_->in(released_) + sizeof header_ + sizeof note_;
  ScatterGather piece{reinterpret_cast<uint64_t>(slot), header_.length, way.slots_lkey};
  payload_ = slot;
  std::optional<Use> use;
  if (destination != nullptr) use = registered(destination, header_.length);
  if (use) {
    piece.address = use->address;
    piece.lkey = use->lkey;
    read_hold_ = std::move(use->hold);
    payload_ = destination;
  }
  post(way, {.wr_id = read_id,
             .opcode = Opcode::rdma_read,
             .rkey = note_.rkey,
             .remote_address = note_.address,
             .pieces = {&piece, 1}});
  reading_ = Reading::under_way;
  statistics_.verbs.reads.add(1);
}

const std::byte* LaneOverQueuePair::lend() {
  if (is_awaited_again_ || (form_ == announced && is_leaving_)) poll();
  if (is_awaited_again_ && arrived_ > released_) parse_again();
  if (form_ != announced) return payload_;
  bool may_read = !is_awaited_again_ && is_open();
  if (reading_ == Reading::no && may_read) start_read(nullptr);
  if (reading_ == Reading::under_way) poll();
  if (reading_ == Reading::ended) return payload_;
  throw_if_failed();
  is_starved_ = true;
  return nullptr;
}

bool LaneOverQueuePair::receive(std::byte* destination) {
  bool may_read = !is_awaited_again_ && is_open();
  if (form_ == announced && reading_ == Reading::no && may_read) start_read(destination);
  const std::byte* payload = lend();
  if (header_.length == 0) return true;
  if (payload == nullptr) return false;
  if (payload == destination) return true;
  std::memcpy(destination, payload, header_.length);
  statistics_.verbs.copies.add(1);
  return true;
}

void LaneOverQueuePair::release() {
  peeked_ = false;
  if (form_ != plain) statistics_.announced.add(1);
  if (form_ == announced) is_awaited_ = true;
  if (form_ == answered) asked_ = {};
  if (note_.reply != 0) reply_ = {note_.reply, note_.address, header_.length, note_.rkey, nullptr};
  reading_ = Reading::no;
  read_hold_.reset();
  is_here_[released_ % num_slots] = false;
  ++released_;
  return_credits();
}

void LaneOverQueuePair::return_credits() {
  bool is_due = released_ - returned_ >= num_slots / 2 || (is_awaited_ && released_ > returned_);
  if (!is_due || !is_open() || !failure_.empty()) return;
  try {
    write_credits(path().ways[0]);
  } catch (const QueueFull&) {
    // The next poll() tries again.
  }
}

}  // namespace hccl
