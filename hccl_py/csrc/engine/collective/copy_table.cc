#include "engine/collective/copy_table.h"

#include <algorithm>

#include "lanes/shared_memory/joint_copy.h"

namespace hccl {

namespace {

constexpr size_t MiB = 1 << 20;

}  // namespace

// By the rank's work in the call. Times are of two ranks on an EPYC, for float32, of three starts
// by turns.
size_t CopyTable::least_single(const Call& call) const {
  const Plan& plan = *call.plan;
  auto is_for_many = [](const Op& op) { return op.kind == OpKind::send && op.num_peers > 1; };
  // Ranks reduce out of slots: an all_reduce of 64 MiB took 9 ms and 11 singly, that of 4 ranks on
  // two cores 19 and 23. One payload for several is written once.
  if (plan.reduces || std::any_of(plan.ops.begin(), plan.ops.end(), is_for_many)) return SIZE_MAX;
  // A rank that only sends helps to copy (joint_copy.h): bytes of a message. A broadcast of 2 MiB
  // to one rank took 70 us and 112 singly, 4 MiB 147 and 190, 8 MiB 350 to 600 and 310 to 490.
  if (plan.only_sends()) {
    return (is_crowded_ ? min_joint_bytes : 8 * MiB) * std::max<size_t>(plan.ops.size(), 1);
  }
  // One block stays in its cache for longer than several: an all_gather of 4 MiB took 210 to 250 us
  // and 300 to 350 singly, 16 MiB 1.9 to 2.2 ms and 2.7 to 3.0, 64 MiB 8.6 and 8.0. An all_to_all
  // of 4 MiB took 320 to 490 us and 210 to 270 singly; on slow cores it is slower singly.
  return call.input.size() == 1 && !is_crowded_ ? 32 * MiB : 4 * MiB;
}

}  // namespace hccl
