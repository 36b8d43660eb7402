#include "engine/collective/steps_over_lanes.h"

#include <algorithm>

#include "engine/calls/timed.h"

namespace hccl {

namespace {

// Enough for many ranks that share a core to take turns.
constexpr auto patience = std::chrono::milliseconds(10);

}  // namespace

StepsOverLanes::StepsOverLanes(int world_size, size_t slot_bytes, Profile* const& profile)
    : slot_bytes_(slot_bytes), profile_(profile) {
  lanes_.resize(static_cast<size_t>(world_size));
  // Never grow while a plan runs.
  fan_out_.reserve(static_cast<size_t>(world_size));
  backlog_.reserve(static_cast<size_t>(world_size));
}

void StepsOverLanes::post(Lane& lane, const Header& header, const std::byte* payload) {
  Timed timed(profile_, lane);
  uint64_t number = lane.post_send(header, payload);
  if (lane.settled()) return;
  backlog_.note(lane);
  if (lane.completed() < number) {
    borrowed_.push_back({&lane, number, payload, payload + header.length});
  }
}

// Whether a message for several lanes waits for a free slot, which saves a copy per lane. Not for
// long, and at most once in a call: one lane's reader may free its slots only after another lane
// has received this message.
bool StepsOverLanes::waits_for_room() {
  if (!may_wait_for_room_) return false;
  Deadline now = Clock::now();
  if (room_deadline_ == Deadline::max()) room_deadline_ = now + patience;
  may_wait_for_room_ = now < room_deadline_;
  return may_wait_for_room_;
}

bool StepsOverLanes::send(std::span<const int> peers, const Header& header,
                          const std::byte* payload) {
  fan_out_.clear();
  for (int peer : peers) {
    if (lane(peer).shares_payload()) fan_out_.push_back(&lane(peer));
  }
  bool shared = false;
  if (fan_out_.size() > 1) {
    Timed timed(profile_, *fan_out_[0]);
    Lane::Shared posted = fan_out_[0]->post_send_to_all(fan_out_, header, payload);
    if (posted == Lane::Shared::later && waits_for_room()) return false;
    shared = posted == Lane::Shared::posted;
    room_deadline_ = Deadline::max();
  }
  for (int peer : peers) {
    if (!shared || !lane(peer).shares_payload()) post(lane(peer), header, payload);
  }
  return true;
}

const std::byte* StepsOverLanes::lend(int peer) {
  Timed timed(profile_, lane(peer));
  return lane(peer).lend();
}

bool StepsOverLanes::receive(int peer, std::byte* destination) {
  Timed timed(profile_, lane(peer));
  return lane(peer).receive(destination);
}

bool StepsOverLanes::has_come(int peer, OpKind kind) {
  Lane& from = lane(peer);
  const Header* header = from.peek();
  if (header == nullptr) return false;
  // A recv may have taken a part of a message on a socket, a long one, or one that both ends copy.
  if (kind != OpKind::recv) return from.lend() != nullptr;
  return from.shares_payload() && header->length <= slot_bytes_ && !header->sender_waits;
}

bool StepsOverLanes::flush(bool is_last) {
  bool moved;
  {
    Timed timed(profile_, *backlog_.lanes().front());
    moved = backlog_.flush();
  }
  // In the last tile hardly any message will carry an acknowledgement, and payloads must be copied
  // before they are overwritten or returned: now, during a wait, that costs nothing.
  if (is_last && !moved) moved = backlog_.settle();
  if (backlog_.empty()) borrowed_.clear();
  return moved;
}

// The source of an earlier send must not change before it left. If it still waits, the lane copies
// one message; a second one on the same lane must wait, as the verifier assumes.
bool StepsOverLanes::may_overwrite(const std::byte* begin, size_t num_bytes) {
  if (borrowed_.empty()) return true;
  forget_returned();
  for (const Borrowed& b : borrowed_) {
    if (b.begin >= begin + num_bytes || begin >= b.end) continue;
    while (b.lane->completed() < b.number) {
      uint64_t before = b.lane->completed();
      b.lane->detach();
      if (b.lane->completed() == before) return false;
    }
  }
  return true;
}

bool StepsOverLanes::is_borrowed(const std::byte* payload) {
  forget_returned();
  return std::ranges::any_of(borrowed_, [&](const auto& b) { return b.begin == payload; });
}

}  // namespace hccl
