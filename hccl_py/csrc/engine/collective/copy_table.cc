#include "engine/collective/copy_table.h"

#include <algorithm>
#include <span>

#include "lanes/shared_memory/joint_copy.h"

namespace hccl {

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB;

// The mode from a number of bytes on; below the first step: cached.
struct Step {
  size_t from;
  CopyMode mode;
};
using Steps = std::span<const Step>;

// How a rank copies, by its work in a call and by the cores of its node's ranks. Times are for
// float32 on two cores of an EPYC, with buffers that were just written.
struct Row {
  Steps near, far, crowded;
};

// One payload for several peers, which nobody reduces: it is best written once, into a slot. 1 MiB
// to 3 peers that share cores took 69 us, and 154 cached; 16 MiB to 7 took 8 ms with the second
// copy past the caches and 13 with the first, 32 MiB 62 and 26.
constexpr Step to_several[] = {{least_step, CopyMode::sender_streamed},
                               {8 * MiB, CopyMode::receiver_streamed},
                               {32 * MiB, CopyMode::sender_streamed}};
constexpr Row shares{to_several, to_several, to_several};

// A rank that only sends what nobody reduces helps to copy it (joint_copy.h): bytes of a message.
// A broadcast to one rank: 64 KiB took 9 us either way, 256 KiB 20 singly and 38 past the caches,
// 1 MiB 69 and 123; 4 MiB took 463 singly, and 662 cached.
constexpr Step to_one[] = {{least_step, CopyMode::sender_streamed}, {128 * KiB, CopyMode::single}};
constexpr Step jointly[] = {{min_joint_bytes, CopyMode::single}};
constexpr Row sends{to_one, jointly, jointly};

// A rank that only sends, to ranks that reduce.
constexpr Step past_caches[] = {{4 * MiB, CopyMode::sender_streamed}};
constexpr Step past_shared_caches[] = {{4 * MiB, CopyMode::receiver_streamed}};
constexpr Row is_reduced{past_caches, past_caches, past_shared_caches};

// A rank that sends and receives, without reductions. An all_to_all of 4 MiB took 1.2 ms singly,
// and 1.5 cached; of 8 ranks on two cores 6.5 and 8.
constexpr Step moved[] = {{4 * MiB, CopyMode::single}};
constexpr Row moves{moved, moved, moved};

// Ranks reduce. Payloads that fit a cache are reduced out of slots: all_reduce of 4 MiB took 0.9
// ms, and 1.2 singly; 64 MiB 23 and 16. Between distant cores 256 KiB took 45 us, and 17 singly. Of
// ranks that share cores, 1 MiB of 4 took 440 us with the first copy past the caches, and 600
// cached.
constexpr Step reduced[] = {{32 * MiB, CopyMode::single}};
constexpr Step reduced_far[] = {{128 * KiB, CopyMode::single}};
constexpr Step reduced_crowded[] = {{128 * KiB, CopyMode::sender_streamed},
                                    {32 * MiB, CopyMode::single}};
constexpr Row reduces{reduced, reduced_far, reduced_crowded};

const Row& row_of(const Plan& plan, bool has_single) {
  auto is_for_many = [](const Op& op) { return op.kind == OpKind::send && op.num_peers > 1; };
  if (plan.reduces) return plan.only_sends() ? is_reduced : reduces;
  if (std::any_of(plan.ops.begin(), plan.ops.end(), is_for_many)) return shares;
  return !plan.only_sends() ? moves : has_single ? sends : shares;
}

}  // namespace

CopyMode CopyTable::mode_of_long(const Call& call, size_t num_bytes, bool is_far) const {
  CopyMode mode = CopyMode::cached;
  const Row& row = row_of(*call.plan, has_single_);
  if (&row == &sends) num_bytes /= std::max<size_t>(call.plan->ops.size(), 1);
  for (const Step& step : is_crowded_ ? row.crowded : is_far ? row.far : row.near) {
    if (num_bytes >= step.from && (has_single_ || step.mode != CopyMode::single)) mode = step.mode;
  }
  return mode;
}

}  // namespace hccl
