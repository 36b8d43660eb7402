// Which way the payloads of a call take: what is measured stands in the table, its shape here.
#include "engine/collective/copy_table.h"

#include "check.h"
#include "lanes/shared_memory/joint_copy.h"

namespace hccl::test {
namespace {

constexpr size_t KiB = 1024, MiB = 1024 * KiB, huge = 1024 * MiB;
constexpr Op send_to_one{OpKind::send, 0, 1, {}, {}}, send_to_two{OpKind::send, 0, 2, {}, {}},
    recv{OpKind::recv, 0, 1, {}, {}};

struct Node {
  CopyTable table;
  Plan plan;
  explicit Node(std::vector<Op> ops, bool reduces = false, bool may_read = true,
                bool is_crowded = false) {
    plan.ops = std::move(ops);
    plan.reduces = reduces;
    table.add_peer(may_read);
    table.set_crowded(is_crowded);
  }
  CopyMode mode(size_t num_bytes, size_t num_blocks = 0) const {
    Call call;
    call.plan = &plan;
    call.input.resize(num_blocks);
    call.total_bytes = num_bytes;
    return table.mode_of(call);
  }
};

}  // namespace

HCCL_TEST(a_rank_without_peers_on_its_node_and_a_compressed_call_copy_by_the_caches) {
  CopyTable alone;
  Node node({send_to_one, recv});
  Call call;
  call.plan = &node.plan;
  call.total_bytes = huge;
  CHECK(alone.mode_of(call) == CopyMode::cached);
  call.compression = Compression::bf16;
  CHECK(node.table.mode_of(call) == CopyMode::cached);
}

HCCL_TEST(long_payloads_leave_the_slots_and_short_ones_do_not) {
  Node node({send_to_one, recv});
  CHECK(node.mode(huge) == CopyMode::single && node.mode(64 * KiB) == CopyMode::cached);
}

HCCL_TEST(a_rank_that_sends_one_block_sends_longer_ones_by_slots) {
  Node node({send_to_one, recv}), crowded({send_to_one, recv}, false, true, true);
  CHECK(node.mode(4 * MiB, 2) == CopyMode::single && node.mode(16 * MiB, 1) == CopyMode::cached);
  CHECK(node.mode(huge, 1) == CopyMode::single && crowded.mode(4 * MiB, 1) == CopyMode::single);
}

HCCL_TEST(what_is_reduced_or_for_several_goes_by_slots) {
  for (bool is_crowded : {false, true}) {
    CHECK(Node({send_to_one, recv}, true, true, is_crowded).mode(huge) == CopyMode::cached);
    CHECK(Node({send_to_one}, true, true, is_crowded).mode(huge) == CopyMode::cached);
    CHECK(Node({send_to_two, recv}, false, true, is_crowded).mode(huge) == CopyMode::cached);
    CHECK(Node({send_to_two}, false, true, is_crowded).mode(huge) == CopyMode::cached);
  }
}

HCCL_TEST(nothing_is_single_where_processes_may_not_read_each_other) {
  for (std::vector<Op> ops : {std::vector<Op>{send_to_one, recv}, std::vector<Op>{send_to_one}}) {
    for (bool is_crowded : {false, true}) {
      CHECK(Node(ops, false, false, is_crowded).mode(huge) == CopyMode::cached);
    }
  }
}

HCCL_TEST(a_rank_that_only_sends_counts_by_message) {
  Node node({send_to_one, send_to_one}), crowded({send_to_one, send_to_one}, false, true, true);
  CHECK(node.mode(16 * MiB) == CopyMode::single);
  CHECK(node.mode(16 * MiB - 2) == CopyMode::cached);
  CHECK(crowded.mode(2 * min_joint_bytes) == CopyMode::single);
  CHECK(crowded.mode(2 * min_joint_bytes - 2) == CopyMode::cached);
}

}  // namespace hccl::test
