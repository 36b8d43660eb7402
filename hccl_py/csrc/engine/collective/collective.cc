#include "engine/collective/collective.h"

#include <algorithm>

#include "base/copy.h"
#include "engine/calls/timed.h"

namespace hccl {

namespace {

// Below, the copy of a tile is faster than the record of what is written.
constexpr size_t min_unread_bytes = 16 << 10;

}  // namespace

Channel::Channel(int rank, int world_size, size_t slot_bytes, int index, int num_channels,
                 Stragglers& stragglers, CompressionStatistics& coded)
    : rank_(rank),
      world_size_(world_size),
      slot_bytes_(slot_bytes),
      index_(index),
      num_channels_(num_channels),
      stragglers_(stragglers),
      coded_(coded),
      over_lanes_(world_size, slot_bytes, profile_) {
  sources_.reserve(static_cast<size_t>(world_size));  // never grows while a plan runs
}

void Channel::start(const Call& call, const Tiling& tiling) {
  const Plan& plan = *call.plan;
  bool is_empty = plan.ops.empty() && plan.steps.empty() && call.source == nullptr;
  if (index_ >= tiling.num_tiles() || is_empty) return;
  begin_steps(call, over_board_.start(call));
  tells_empty_ = plan.data_chunks == 0 || call.data.count == 0;
  scaled_.clear();
  call_ = &call;
  tiling_ = &tiling;
  tile_ = index_;
  item_size_ = size_of(call.dtype);
  // An average and an encoding change what is sent.
  reads_input_ = call.source != nullptr && !call.divide && call.compression == Compression::none &&
                 call.data.count * item_size_ >= min_unread_bytes;
  unwritten_.resize(reads_input_ ? static_cast<size_t>(plan.data_chunks) : 0);
  begin_tile();
  ready_ = 0;
  sender_waits_ = call.copy_mode == CopyMode::single && plan.only_sends();
  size_t scratch_bytes = plan.slots_needed() * slot_bytes_;
  if (scratch_.size() < scratch_bytes) scratch_.resize(scratch_bytes);
}

// The board's steps wait for room themselves, and a compressed message that is sent again would be
// encoded again.
void Channel::begin_steps(const Call& call, bool on_board) {
  over_lanes_.start(!on_board && call.compression == Compression::none);
  steps_ = on_board ? static_cast<Steps*>(&over_board_) : &over_lanes_;
}

void Channel::begin_tile() {
  next_op_ = 0;
  if (call_->source == nullptr) return;
  if (!reads_input_) return copy_input(tiling_->tile_of(call_->data, tile_));
  std::ranges::fill(unwritten_, uint8_t{1});
}

void Channel::copy_input(const Span& to) {
  if (to.count == 0) return;
  Timed timed(profile_, &Profile::copy_ns);
  copy(to.address, call_->source + (to.address - call_->data.address), to.count * item_size_);
}

bool Channel::step() {
  bool moved = false;
  while (call_ != nullptr) {
    const Plan& plan = *call_->plan;
    bool ends_step = is_on_board() && over_board_.ends_before(next_op_);
    bool ended = !ends_step && next_op_ == plan.ops.size();
    if (!(ends_step ? end_step() : ended ? end_tile() : run(plan.ops[next_op_]))) break;
    if (!ends_step && !ended) ++next_op_;
    moved = true;
  }
  return moved;
}

bool Channel::end_step() {
  if (!over_board_.end_step(call_->fingerprint)) return false;
  if (over_board_.has_ended()) begin_steps(*call_, false);
  return true;
}

// False while a peer still reads data that an average divides.
bool Channel::end_tile() {
  if (reads_input_) bring_input({Buffer::data, 0, call_->plan->data_chunks});
  if (call_->divide) {
    bool has_data = call_->plan->data_chunks > 0;
    Span span = tiling_->tile_of(has_data ? call_->data : call_->output.at(0), tile_);
    if (!may_overwrite(span)) return false;
    Timed timed(profile_, &Profile::reduce_ns);
    divide(span);
  }
  tile_ += num_channels_;
  if (tile_ < tiling_->num_tiles()) {
    begin_tile();
  } else {
    call_ = nullptr;
  }
  return true;
}

bool Channel::flush() {
  const std::vector<Lane*>& unsettled = over_lanes_.unsettled();
  if (unsettled.empty()) return false;
  int awaited = stragglers_.waits() ? unsettled.front()->peer() : rank_;
  bool is_last = call_ == nullptr || tile_ + num_channels_ >= tiling_->num_tiles();
  bool moved = over_lanes_.flush(is_last);
  // A rank without data to send first shows itself by taking our message.
  if (moved && awaited != rank_ && !stragglers_.has_arrived(awaited)) {
    stragglers_.arrive(awaited, 0);
  }
  return moved;
}

Stage Channel::stage() const {
  if (call_ == nullptr) return {"flush", 0, 0, 0, 0};
  const std::vector<Op>& ops = call_->plan->ops;
  size_t op = std::min(next_op_, ops.size() - 1);
  return {op_names[static_cast<size_t>(ops[op].kind)], static_cast<int64_t>(op) + 1,
          static_cast<int64_t>(ops.size()), tile_ + 1, tiling_->num_tiles()};
}

std::vector<int> Channel::waiting_for() const {
  std::vector<int> ranks = over_board_.behind();
  for (const Lane* lane : over_lanes_.unsettled()) ranks.push_back(lane->peer());
  if (call_ == nullptr || over_board_.lacks_room() || next_op_ == call_->plan->ops.size()) {
    return ranks;
  }
  const Op& op = call_->plan->ops[next_op_];
  if (op.kind == OpKind::copy) return ranks;
  if (op.kind == OpKind::send) {  // it waits for room that slow readers occupy
    for (int peer : peers_of(op)) {
      bool is_known = std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
      if (!is_known && !over_lanes_.lane(peer).is_drained()) ranks.push_back(peer);
    }
    return ranks;
  }
  // Some peers have delivered and may even have left; the op waits for the others.
  auto has_delivered = [&](int peer) {
    try {
      return steps_->has_come(peer, op.kind);
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
  int64_t end = call_ == nullptr ? std::max<int64_t>(tiling.num_tiles(), index_) : tile_;
  auto num_tiles = static_cast<double>((end - index_ + num_channels_ - 1) / num_channels_);
  if (call_ == nullptr) return num_tiles;
  return num_tiles + static_cast<double>(next_op_) /
                         std::max(1.0, static_cast<double>(call_->plan->ops.size()));
}

}  // namespace hccl
