#include "engine/collective/copy_table.h"

#include <algorithm>
#include <limits>

#include "lanes/shared_memory/joint_copy.h"

namespace hccl {

namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB;
constexpr size_t never = std::numeric_limits<size_t>::max();

// From how many bytes on a call takes the mode, by where the ranks of the node run. Below: cached.
struct Row {
  size_t near, far, crowded;
  CopyMode mode;
};

// One payload for several peers, which nobody reduces: it is best written once, into a slot.
constexpr Row shares{4 * MiB, 4 * MiB, 4 * MiB, CopyMode::receiver_streamed};
// A rank that only sends what nobody reduces helps to copy it (joint_copy.h): bytes of a message.
constexpr Row sends{min_joint_bytes, min_joint_bytes, min_joint_bytes, CopyMode::single};
// A rank that only sends, to ranks that reduce.
constexpr Row is_reduced{4 * MiB, 4 * MiB, never, CopyMode::sender_streamed};
constexpr Row is_reduced_crowded{never, never, 4 * MiB, CopyMode::receiver_streamed};
// A rank that sends and receives, and nobody reduces.
constexpr Row moves{1 * MiB, 1 * MiB, 4 * MiB, CopyMode::single};
// Ranks reduce. All_reduce of 2 ranks, 256 KiB: between distant cores 17 us, and 45 through slots;
// between near ones 24 to 33, and 12.7. Of ranks that share a core, the one that reduces finds the
// slots of the others in its cache: 4 MiB among 8 ranks on 2 cores took 2.6 ms, and 4.5 singly.
constexpr Row reduces{4 * MiB, 128 * KiB, never, CopyMode::single};

const Row& row_of(const Plan& plan, bool has_single, bool is_crowded) {
  auto is_for_many = [](const Op& op) { return op.kind == OpKind::send && op.num_peers > 1; };
  if (plan.reduces) {
    return !plan.only_sends() ? reduces : is_crowded ? is_reduced_crowded : is_reduced;
  }
  if (std::any_of(plan.ops.begin(), plan.ops.end(), is_for_many)) return shares;
  return !plan.only_sends() ? moves : has_single ? sends : shares;
}

}  // namespace

CopyMode CopyTable::mode_of(const Call& call, bool is_far) const {
  if (!has_peers_ || call.compression != Compression::none) return CopyMode::cached;
  const Row& row = row_of(*call.plan, has_single_, is_crowded_);
  if (row.mode == CopyMode::single && !has_single_) return CopyMode::cached;
  size_t num_bytes = call.num_bytes();
  if (&row == &sends) num_bytes /= std::max<size_t>(call.plan->ops.size(), 1);
  size_t least = is_crowded_ ? row.crowded : is_far ? row.far : row.near;
  return num_bytes >= least ? row.mode : CopyMode::cached;
}

}  // namespace hccl
