#include "engine/collective/collective_queue.h"

#include <algorithm>
#include <utility>

namespace hccl {

namespace {

constexpr uint64_t sequence_mask = 0xffff;  // the low bits of a fingerprint
// Above them: what kind of call it is, for the counters.
constexpr int kind_shift = 16;
constexpr uint64_t kind_mask = 0xf;

}  // namespace

CollectiveQueue::CollectiveQueue(int rank, int world_size, int num_channels, size_t slot_bytes,
                                 std::shared_ptr<Distance> distance, Recorder& recorder,
                                 Statistics& statistics)
    : slot_bytes_(slot_bytes),
      recorder_(recorder),
      statistics_(statistics),
      stragglers_(rank, world_size),
      distance_(std::move(distance)) {
  for (int i = 0; i < num_channels; ++i) {
    channels_.emplace_back(rank, world_size, slot_bytes_, i, num_channels, stragglers_,
                           statistics_.compression);
  }
}

bool CollectiveQueue::advance(bool may_spin) {
  if (!active_) begin();
  bool moved = false;
  bool finished = true;
  for (Channel& channel : channels_) {
    moved |= channel.step();
    moved |= channel.flush();
    finished &= channel.finished();
  }
  if (finished) end();
  moved |= finished;
  stragglers_.turn(moved, may_spin);
  return moved;
}

void CollectiveQueue::begin() {
  active_ = std::move(waiting_.front());
  waiting_.pop_front();
  Call& call = active_->call;
  call.fingerprint = (call.fingerprint & ~sequence_mask) | (active_->sequence & sequence_mask);
  recorder_.start(*active_, last_end_ns_);
  stragglers_.begin(active_->sequence);
  num_announced_before_ = statistics_.announced.value();
  if (!active_->tiling.fits(call)) {
    size_t longest = is_one_node_ && call.plan->long_messages ? max_long_bytes : slot_bytes_;
    active_->tiling = Tiling(call, longest, static_cast<int>(channels_.size()));
  }
  expect(call);
  distance_->review(active_->submitted);
  call.copy_mode = copy_table_.mode_of(call);
  bool is_timed = is_profiled_ || call.compression != Compression::none;
  for (Channel& channel : channels_) channel.set_profile(is_timed ? &statistics_.profile : nullptr);
  for (Channel& channel : channels_) channel.start(call, active_->tiling);
}

// Adjacent blocks are one buffer.
void CollectiveQueue::expect(const Call& call) {
  if (memories_.empty()) return;
  size_t item_size = size_of(call.dtype);
  auto tell = [this](const std::byte* begin, const std::byte* end) {
    if (begin == end) return;
    for (const auto& memory : memories_) memory->expect(begin, static_cast<size_t>(end - begin));
  };
  auto tell_all = [&](std::span<const hccl::Span> blocks) {
    const std::byte *begin = nullptr, *end = nullptr;
    for (const hccl::Span& block : blocks) {
      if (block.count == 0) continue;
      if (block.address != end) {
        tell(begin, end);
        begin = block.address;
      }
      end = block.address + block.count * item_size;
    }
    tell(begin, end);
  };
  tell_all({&call.data, 1});
  tell_all(call.input);
  tell_all(call.output);
}

void CollectiveQueue::end() {
  statistics_.collectives.add(1);
  record_end(CallState::completed);
  std::exchange(active_, nullptr)->finish();
}

void CollectiveQueue::record_end(CallState state) {
  last_end_ns_ = steady_ns(Clock::now());
  bool rendezvous = statistics_.announced.value() != num_announced_before_;
  if (rendezvous) statistics_.rendezvous.add(1);
  recorder_.end(*active_, state, last_end_ns_, stragglers_.waiting(), rendezvous);
  stragglers_.end();
  if (state != CallState::completed) return;
  uint64_t busy_ns = last_end_ns_ - active_->started_ns;
  uint64_t waiting_ns = std::min(busy_ns, stragglers_.waiting().total_ns);
  const Call& call = active_->call;
  CallStatistics& kind = statistics_.calls[call.fingerprint >> kind_shift & kind_mask];
  kind.add(waiting_ns, busy_ns - waiting_ns);
  kind.elements.add(call.total_bytes / size_of(call.dtype));
  if (call.compression != Compression::none) statistics_.compression.calls.add(1);
}

bool CollectiveQueue::unflushed() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.unflushed(); });
}

Deadline CollectiveQueue::next_turn() const {
  if (!active_) return Deadline::max();
  Deadline next = active_->deadline;
  for (const Channel& channel : channels_) next = std::min(next, channel.room_deadline());
  return next;
}

void CollectiveQueue::look_for_strays() {
  if (!active_) return;
  for (Channel& channel : channels_) channel.look_for_strays(active_->call.fingerprint);
}

bool CollectiveQueue::is_late(Deadline now) const {
  auto late = [now](const RequestPtr& request) { return now >= request->deadline; };
  return active_ && (late(active_) || std::any_of(waiting_.begin(), waiting_.end(), late));
}

bool CollectiveQueue::waits_for(int peer) const {
  return active_ && std::any_of(channels_.begin(), channels_.end(), [&](const Channel& channel) {
           std::vector<int> ranks = channel.waiting_for();
           return std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
         });
}

bool CollectiveQueue::has_unawaited() const {
  auto unawaited = [](const RequestPtr& request) { return request->is_unawaited(); };
  return (active_ && unawaited(active_)) ||
         std::any_of(waiting_.begin(), waiting_.end(), unawaited);
}

void CollectiveQueue::measure(CallProgress& progress) const {
  if (!active_) return;
  const Call& call = active_->call;
  progress.sequence = active_->sequence;
  progress.fingerprint = call.fingerprint;
  progress.timeout_s =
      std::chrono::duration<double>(active_->deadline - active_->submitted).count();
  progress.bytes_total = call.total_bytes;
  double done = 0;
  std::vector<int>& ranks = progress.waiting_for;
  for (const Channel& channel : channels_) {
    done += channel.tiles_done(active_->tiling);
    if (channel.finished()) continue;
    std::vector<int> its_ranks = channel.waiting_for();
    ranks.insert(ranks.end(), its_ranks.begin(), its_ranks.end());
    if (progress.stage.num_steps == 0) progress.stage = channel.stage();
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (active_->tiling.num_tiles() > 0) {
    double part = done / static_cast<double>(active_->tiling.num_tiles());
    progress.bytes_done = static_cast<size_t>(part * static_cast<double>(call.total_bytes));
  }
}

void CollectiveQueue::abandon(std::vector<RequestPtr>& unfinished) {
  if (active_) {
    CallProgress progress;
    measure(progress);
    stragglers_.give_up(progress.waiting_for.empty() ? any_rank : progress.waiting_for.front());
    record_end(CallState::failed);
    unfinished.push_back(std::exchange(active_, nullptr));
  }
  unfinished.insert(unfinished.end(), waiting_.begin(), waiting_.end());
  waiting_.clear();
}

void CollectiveQueue::close() { channels_.clear(); }

}  // namespace hccl
