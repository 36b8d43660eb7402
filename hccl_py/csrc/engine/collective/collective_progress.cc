// The progress of a call under way in a channel: its step, and the ranks that it waits for.
#include <algorithm>

#include "engine/collective/collective.h"

namespace hccl {

Stage Channel::stage() const {
  if (call_ == nullptr) return {"flush", 0, 0, 0, 0};
  const std::vector<Op>& ops = call_->plan->ops;
  size_t op = std::min(next_op_, ops.size() - 1);
  return {op_names[static_cast<size_t>(ops[op].kind)], static_cast<int64_t>(op) + 1,
          static_cast<int64_t>(ops.size()), tile_ + 1, tiling_->num_tiles()};
}

std::vector<int> Channel::waiting_for() const {
  std::vector<int> ranks;
  for (const Lane* lane : backlog_.lanes()) ranks.push_back(lane->peer());
  if (lacks_room_) {
    std::vector<int> behind = board_->behind();
    ranks.insert(ranks.end(), behind.begin(), behind.end());
  }
  if (call_ == nullptr || lacks_room_ || next_op_ == phase_end()) return ranks;
  const Op& op = call_->plan->ops[next_op_];
  if (op.kind == OpKind::copy) return ranks;
  if (op.kind == OpKind::send) {  // it waits for room that slow readers take up
    for (int peer : peers_of(op)) {
      bool is_known = std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
      if (!is_known && !lanes_[static_cast<size_t>(peer)]->is_drained()) ranks.push_back(peer);
    }
    return ranks;
  }
  // Some have delivered and may even have left since; what is waited for then is somebody else.
  auto has_delivered = [&](int peer) {
    try {
      if (peek(peer) == nullptr) return false;
      if (posted(peer) != nullptr) return true;
      Lane& from = *lanes_[static_cast<size_t>(peer)];
      // A recv may have taken half of a message on a socket, of a long one, or of one that both
      // ends copy.
      if (op.kind != OpKind::recv) return from.lend() != nullptr;
      return from.shares_payload() && from.peek()->length <= slot_bytes_ &&
             !from.peek()->sender_waits;
    } catch (const LaneError&) {
      return false;
    }
  };
  for (int peer : peers_of(op).subspan(static_cast<size_t>(ready_))) {
    if (!has_delivered(peer)) ranks.push_back(peer);
  }
  return ranks;
}

double Channel::tiles_done(const Tiling& tiling) const {
  int64_t end = call_ == nullptr ? std::max<int64_t>(tiling.num_tiles(), index_) : window_begin_;
  int64_t num_tiles = (end - index_ + num_channels_ - 1) / num_channels_;
  if (call_ == nullptr) return static_cast<double>(num_tiles);
  auto count = [this](int64_t upto) {
    return static_cast<size_t>((upto - window_begin_) / num_channels_);
  };
  size_t ops_done = count(window_end_) * phase_begin() +
                    count(tile_) * (phase_end() - phase_begin()) + (next_op_ - phase_begin());
  return static_cast<double>(num_tiles) +
         static_cast<double>(ops_done) / static_cast<double>(phase_ends_.back());
}

}  // namespace hccl
