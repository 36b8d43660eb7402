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

// How a rank copies, by its work in a call and by whether ranks of its node share cores. Times are
// for float32 on two near cores of an EPYC, with buffers that were just written. Between far cores
// what is cached here goes past the caches, see distance.h: an all_reduce of 1 MiB took 370 us by
// the caches, 190 past them and 240 singly.
struct Row {
  Steps apart, crowded;
};

// One payload for several peers, which nobody reduces: it is best written once, into a slot. 1 MiB
// to 3 peers that share cores took 69 us, and 154 cached; 16 MiB to 7 took 8 ms with the second
// copy past the caches and 13 with the first, 32 MiB 62 and 26.
constexpr Step to_several[] = {{least_step, CopyMode::sender_streamed},
                               {8 * MiB, CopyMode::receiver_streamed},
                               {32 * MiB, CopyMode::sender_streamed}};
constexpr Row shares{to_several, to_several};

// A rank that only sends what nobody reduces helps to copy it (joint_copy.h): bytes of a message.
// A broadcast of 1 MiB to one rank took 58 us cached, 100 past the caches and 88 singly; 4 MiB took
// 270 cached and 225 singly.
constexpr Step to_one[] = {{2 * MiB, CopyMode::single}};
constexpr Step jointly[] = {{min_joint_bytes, CopyMode::single}};
constexpr Row sends{to_one, jointly};

// A rank that only sends, to ranks that reduce. 8 MiB took 560 us cached, 790 past the caches and
// 1,500 singly.
constexpr Step past_shared_caches[] = {{4 * MiB, CopyMode::receiver_streamed}};
constexpr Row is_reduced{{}, past_shared_caches};

// A rank that sends and receives, without reductions. An all_to_all of 4 MiB took 270 to 470 us
// singly and 350 to 430 cached, 8 MiB 770 and 980. Singly it takes as long between far cores.
constexpr Step moved[] = {{4 * MiB, CopyMode::single}};
constexpr Row moves{moved, moved};

// Ranks reduce. Payloads that fit a cache are reduced out of slots: all_reduce of 1 MiB took 77 us,
// and 190 singly; 64 MiB out of place 26 ms, and 19 singly. Of ranks that share cores, 1 MiB of 4
// took 440 us with the first copy past the caches, and 600 cached.
constexpr Step reduced[] = {{32 * MiB, CopyMode::single}};
constexpr Step reduced_crowded[] = {{128 * KiB, CopyMode::sender_streamed},
                                    {32 * MiB, CopyMode::single}};
constexpr Row reduces{reduced, reduced_crowded};

const Row& row_of(const Plan& plan, bool has_single) {
  auto is_for_many = [](const Op& op) { return op.kind == OpKind::send && op.num_peers > 1; };
  if (plan.reduces) return plan.only_sends() ? is_reduced : reduces;
  if (std::any_of(plan.ops.begin(), plan.ops.end(), is_for_many)) return shares;
  return !plan.only_sends() ? moves : has_single ? sends : shares;
}

}  // namespace

CopyMode CopyTable::mode_of_long(const Call& call, size_t num_bytes) const {
  CopyMode mode = CopyMode::cached;
  const Row& row = row_of(*call.plan, has_single_);
  if (&row == &sends) num_bytes /= std::max<size_t>(call.plan->ops.size(), 1);
  for (const Step& step : is_crowded_ ? row.crowded : row.apart) {
    if (num_bytes >= step.from && (has_single_ || step.mode != CopyMode::single)) mode = step.mode;
  }
  return mode;
}

}  // namespace hccl
