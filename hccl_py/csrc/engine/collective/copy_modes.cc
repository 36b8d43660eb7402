#include "engine/collective/copy_modes.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "lanes/shared_memory/joint_copy.h"

namespace hccl {

namespace {

CopyMode fastest_of(const ModeTimes& times_ns) {
  return static_cast<CopyMode>(std::min_element(times_ns.begin(), times_ns.end()) -
                               times_ns.begin());
}

// `now`, or one that is clearly faster.
CopyMode choose(const ModeTimes& times_ns, CopyMode now, uint64_t margin) {
  CopyMode fastest = fastest_of(times_ns);
  uint64_t fastest_ns = times_ns[static_cast<size_t>(fastest)];
  return times_ns[static_cast<size_t>(now)] <= fastest_ns + fastest_ns / margin ? now : fastest;
}

}  // namespace

// A payload that one rank writes once for several is best left in slots for them. Where a rank only
// sends, and no receiver reduces, both ends copy its messages. Of ranks that share a core, the one
// that reduces finds slots of the others in its cache: with 8 ranks on 2 cores, an all_reduce of 4
// MiB took 2.6 ms, and 4.5 ms with `single`.
CopyMode CopyModes::usual_mode(const Plan& plan, size_t num_bytes) const {
  auto is_for_many = [](const Op& op) { return op.kind == OpKind::send && op.num_peers > 1; };
  bool is_shared = !plan.reduces && std::any_of(plan.ops.begin(), plan.ops.end(), is_for_many);
  bool is_one_way = plan.only_sends();
  bool is_uncached = num_bytes >= min_uncached_bytes;
  bool may_be_single = modes_[1] == CopyMode::single;
  bool is_joint = is_one_way && !plan.reduces && may_be_single;
  if (is_shared || (is_one_way && !is_joint)) {
    if (!is_uncached) return CopyMode::cached;
    return plan.reduces && !is_crowded_ ? CopyMode::sender_streamed : CopyMode::receiver_streamed;
  }
  bool is_long = is_joint       ? num_bytes >= min_joint_bytes * plan.ops.size()
                 : plan.reduces ? is_uncached && !is_crowded_
                                : num_bytes >= (is_crowded_ ? min_uncached_bytes : long_bytes);
  return is_long && may_be_single ? CopyMode::single : CopyMode::cached;
}

CopyMode CopyModes::begin(const Call& call, uint64_t sequence) {
  active_ = nullptr;
  if (theirs_.empty() || call.compression != Compression::none) return CopyMode::cached;
  size_t num_bytes = call.num_bytes();
  if (num_bytes < (is_crowded_ ? min_crowded_bytes : min_bytes)) return CopyMode::cached;
  Kind kind{call.plan, static_cast<int>(std::bit_width(num_bytes))};
  auto found = trials_.find(kind);
  if (found == trials_.end()) {
    if (trials_.size() == most_kinds) trials_.clear();
    bool is_long = num_bytes >= long_bytes,
         is_quick = is_long && !is_crowded_ && num_bytes < max_quick_bytes;
    Trial made;
    made.later_shape = is_crowded_ ? crowded_calls : is_long ? long_calls : short_calls;
    made.shape = is_quick ? quick : made.later_shape;
    made.num_left = is_crowded_ ? shortest_stay : is_quick ? first_quick_stay : first_stay;
    made.stay = is_quick ? first_stay : shortest_stay;
    made.choice = usual_mode(*call.plan, num_bytes);
    const std::vector<Op>& ops = call.plan->ops;
    made.runs_ahead = call.plan->only_sends();
    made.sends =
        std::any_of(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::send; });
    found = trials_.emplace(kind, made).first;
  }
  Trial& trial = found->second;
  if (trial.num_left > 0) {
    --trial.num_left;
    if (!trial.is_agreed) agree(trial);
    return trial.choice;
  }
  active_ = &trial;
  if (trial.next == 0) trial.number = sequence;
  return modes_[trial.next / trial.shape.calls_in_row % modes_.size()];
}

void CopyModes::end(uint64_t elapsed_ns) {
  if (active_ == nullptr) return;
  Trial& trial = *std::exchange(active_, nullptr);
  const Shape& shape = trial.shape;
  size_t row = trial.next / shape.calls_in_row;
  bool counts = trial.next++ % shape.calls_in_row >= shape.num_ignored;
  if (counts) trial.rows_ns[row % modes_.size()][row / modes_.size()] += elapsed_ns;
  if (trial.next == shape.num_calls()) decide(trial);
}

// The row in the middle tells, or the faster one of two: a call may wait for ranks that compute for
// longer than any copy takes.
void CopyModes::decide(Trial& trial) {
  trial.times_ns.fill(std::numeric_limits<uint64_t>::max());
  size_t num_rounds = trial.shape.num_rounds;
  for (size_t i = modes_.size(); i-- > 0;) {  // where `cached` stands twice, its own place counts
    auto begin = trial.rows_ns[i].begin(), end = begin + static_cast<ptrdiff_t>(num_rounds);
    std::sort(begin, end);
    trial.times_ns[static_cast<size_t>(modes_[i])] =
        trial.runs_ahead ? 0 : begin[(num_rounds - 1) / 2];
  }
  mine_->say_trial(trial.number, {trial.times_ns, trial.sends ? static_cast<uint64_t>(trial.choice)
                                                              : num_copy_modes});
  trial.choice_before = trial.choice;
  trial.margin = trial.shape.margin;
  trial.choice = choose(trial.times_ns, trial.choice_before, trial.margin);
  trial.num_left = trial.stay;
  trial.stay = trial.stay < shortest_stay ? shortest_stay : std::min(2 * trial.stay, longest_stay);
  trial.shape = trial.later_shape;
  trial.next = 0;
  trial.rows_ns = {};
  trial.is_agreed = false;
}

// Until all have said what their trial took, or where they had other calls, a rank's own choice
// serves.
void CopyModes::agree(Trial& trial) {
  ModeTimes slowest_ns = trial.times_ns;
  std::optional<uint64_t> now;
  if (trial.sends) now = static_cast<uint64_t>(trial.choice_before);
  bool was_one = true;
  for (const auto& segment : theirs_) {
    std::optional<TrialReport> report = segment->trial(trial.number);
    if (!report) return;
    for (size_t i = 0; i < num_copy_modes; ++i) {
      slowest_ns[i] = std::max(slowest_ns[i], report->times_ns[i]);
    }
    if (report->mode >= num_copy_modes) continue;
    was_one = was_one && (!now || *now == report->mode);
    now = report->mode;
  }
  bool may_stay = was_one && now;
  trial.choice = may_stay ? choose(slowest_ns, static_cast<CopyMode>(*now), trial.margin)
                          : fastest_of(slowest_ns);
  trial.is_agreed = true;
}

}  // namespace hccl
