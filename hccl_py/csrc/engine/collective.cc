#include "engine/collective.h"

#include <algorithm>

#include "engine/timed.h"

namespace hccl {

namespace {

// A call of more bytes, of all ranks together, hardly has messages short enough for the board.
constexpr size_t max_board_bytes = post_areas * area_bytes;

// What a rank has just reduced lies in its cache, and others read it slowly from there. So a step takes as many
// tiles before the next step begins, and sends all of them first: what stays in place takes no slot, and ranks that
// share a core take turns less often. Of 128 KiB each, that is about a core's second-level cache.
constexpr int64_t tiles_in_place = 16;

}  // namespace

Channel::Channel(int rank, int world_size, size_t slot_bytes, int index, int num_channels,
                 Stragglers& stragglers)
    : rank_(rank),
      world_size_(world_size),
      slot_bytes_(slot_bytes),
      index_(index),
      num_channels_(num_channels),
      stragglers_(stragglers) {
  lanes_.resize(static_cast<size_t>(world_size));
  // Never grow while a plan runs.
  sources_.reserve(static_cast<size_t>(world_size));
  fan_out_.reserve(static_cast<size_t>(world_size));
  backlog_.reserve(static_cast<size_t>(world_size));
}

void Channel::start(const Call& call, const Tiling& tiling) {
  is_by_step_ = is_asking_ = false;
  all_stay_in_place_ = true;
  before_ = nullptr;
  first_tile_ = index_;
  stride_ = num_channels_;
  window_ = 1;
  first_op_ = receives_ = 0;
  end_op_ = call.plan->ops.size();
  begin(call, tiling);
}

void Channel::ask(const Call& call, const Tiling& tiling) {
  start(call, tiling);
  is_asking_ = true;
}

bool Channel::has_asked() const {
  return call_ != nullptr && is_asking_ && next_op_ == static_cast<size_t>(call_->plan->steps[0]);
}

void Channel::start_step(const Call& call, const Tiling& tiling, size_t step, Channel* before) {
  call_ = nullptr;
  is_by_step_ = true;
  is_asking_ = false;
  before_ = before;
  first_tile_ = step == 0 ? 1 : 0;  // of the first tile it was taken to ask
  stride_ = 1;
  const Plan& plan = *call.plan;
  first_op_ = receives_ = step == 0 ? 0 : static_cast<size_t>(plan.steps[step - 1]);
  end_op_ = static_cast<size_t>(plan.steps[step]);
  window_ = tiles_in_place;
  auto ops = plan.ops.begin(), end = ops + static_cast<ptrdiff_t>(end_op_);
  auto found = std::find_if(ops + static_cast<ptrdiff_t>(first_op_), end,
                            [](const Op& op) { return op.kind != OpKind::send; });
  if (found != end) receives_ = static_cast<size_t>(found - ops);
  begin(call, tiling);
}

void Channel::begin(const Call& call, const Tiling& tiling) {
  const Plan& plan = *call.plan;
  if (first_tile_ >= tiling.num_tiles() || (plan.ops.empty() && plan.steps.empty())) return;
  on_board_ = board_ != nullptr && !plan.steps.empty() && call.total_bytes <= max_board_bytes;
  step_ = 0;
  has_posted_ = lacks_room_ = false;
  room_deadline_ = Deadline::max();
  may_wait_for_room_ = call.compression == Compression::none;  // a retry would encode it again
  tells_empty_ = plan.data_chunks == 0 || call.data.count == 0;
  call_ = &call;
  tiling_ = &tiling;
  window_begin_ = tile_ = first_tile_;
  next_op_ = first_op_;
  pass_end_ = receives_ > first_op_ ? receives_ : end_op_;
  ready_ = 0;
  item_size_ = size_of(call.dtype);
  sender_waits_ = call.copy_mode == CopyMode::single && plan.only_sends();
  size_t scratch_bytes = plan.slots_needed() * slot_bytes_;
  if (scratch_.size() < scratch_bytes) scratch_.resize(scratch_bytes);
}

bool Channel::waits_for_step_before() const {
  return before_ != nullptr && before_->call_ != nullptr &&
         before_->window_begin_ < std::min(window_begin_ + window_, tiling_->num_tiles());
}

bool Channel::step() {
  bool moved = false;
  while (call_ != nullptr && !has_asked() && !waits_for_step_before()) {
    const Plan& plan = *call_->plan;
    bool ends_step = on_board_ && next_op_ == static_cast<size_t>(plan.steps[step_]);
    bool ended = !ends_step && next_op_ == pass_end_;
    if (!(ends_step ? end_step() : ended ? finish_tile() : run(plan.ops[next_op_]))) break;
    if (!ends_step && !ended) ++next_op_;
    moved = true;
    if (ended && is_by_step_) break;  // the next step of that tile comes first
  }
  return moved;
}

// All that this rank sends in a step, before anything else that it does there. False: no room now.
bool Channel::post_messages() {
  if (has_posted_) return true;
  Board::Posted posted;
  {
    Timed timed(profile_, &Profile::copy_ns);
    posted = board_->post();
  }
  lacks_room_ = posted == Board::Posted::no_room;
  if (lacks_room_) return false;
  has_posted_ = true;
  if (posted == Board::Posted::whole) return true;
  for (const Board::Message& message : board_->messages()) {
    send_by_lanes(message.peers, message.header, message.payload);
  }
  return true;
}

bool Channel::end_step() {
  if (!post_messages()) return false;
  board_->end_step(call_->fingerprint);
  has_posted_ = false;
  on_board_ = ++step_ < call_->plan->steps.size();
  return true;
}

// False while a peer has still to read what an average divides.
bool Channel::finish_tile() {
  bool is_last_pass = pass_end_ == end_op_;
  if (call_->divide && is_last_pass && end_op_ == call_->plan->ops.size()) {
    bool has_data = call_->plan->data_chunks > 0;
    Span span = tiling_->tile_of(has_data ? call_->data : call_->output.at(0), tile_);
    if (!may_overwrite(span)) return false;
    Timed timed(profile_, &Profile::reduce_ns);
    scale(call_->dtype, span.address, span.count, world_size_);
  }
  tile_ += stride_;
  if (tile_ >= std::min(window_begin_ + window_ * stride_, tiling_->num_tiles())) {
    if (is_last_pass) window_begin_ = tile_;
    tile_ = window_begin_;
    pass_end_ = is_last_pass && receives_ > first_op_ ? receives_ : end_op_;
  }
  next_op_ = pass_end_ == end_op_ ? receives_ : first_op_;
  if (window_begin_ >= tiling_->num_tiles()) call_ = nullptr;
  return true;
}

bool Channel::flush() {
  if (backlog_.empty()) return false;
  int awaited = stragglers_.waits() ? backlog_.lanes().front()->peer() : rank_;
  bool moved;
  {
    Timed timed(profile_, *backlog_.lanes().front());
    moved = backlog_.flush();
  }
  // Its taking what we sent is the first sign of a rank that has nothing to send.
  if (moved && awaited != rank_ && !stragglers_.has_arrived(awaited)) stragglers_.arrive(awaited, 0);
  // In the last tile hardly anything will bring an acknowledgement along, and what was sent would have
  // to be copied before it is overwritten or given back: now, while we wait, it costs nothing.
  bool last = call_ == nullptr || tile_ + stride_ >= tiling_->num_tiles();
  if (last && !moved) moved = backlog_.settle();
  if (backlog_.empty()) borrowed_.clear();
  return moved;
}

void Channel::abandon() {
  call_ = nullptr;
  on_board_ = lacks_room_ = is_asking_ = false;
  room_deadline_ = Deadline::max();
  backlog_.clear();
  borrowed_.clear();
  for (const auto& lane : lanes_) {
    if (lane) lane->abandon();
  }
}

}  // namespace hccl
