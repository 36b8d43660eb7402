// Which way the large payloads of a kind of call take, by trial.
#include "engine/copy_modes.h"

#include <memory>
#include <vector>

#include "check.h"
#include "lanes/shared_memory/joint_copy.h"

namespace hccl::test {
namespace {

constexpr size_t medium = 1 << 19, num_tried = 3;

// Calls of one plan, whose times are given by mode, of a rank and another one of its node.
struct Calls {
  std::shared_ptr<Segment> segment = Segment::create({}), theirs = Segment::create({});
  CopyModes modes{segment};
  Plan plan;
  uint64_t sequence = 0;
  std::vector<uint64_t> times_ns = {1000, 1000, 1000, 1000};

  explicit Calls(bool has_single = true) {
    plan.peers = {0, 2};
    plan.reduces = false;
    plan.ops = {{OpKind::send, 0, 1, {}, {}}, {OpKind::recv, 0, 1, {}, {}}};
    modes.add_peer(theirs);
    if (has_single) modes.allow_single();
  }
  CopyMode run(size_t num_bytes = medium) {
    Call call;
    call.plan = &plan;
    call.total_bytes = num_bytes;
    CopyMode mode = modes.begin(call, sequence++);
    modes.end(times_ns[static_cast<size_t>(mode)]);
    return mode;
  }
  // Of a size; returns the mode of all of them.
  CopyMode run_first(size_t num_bytes = medium) {
    CopyMode mode = run(num_bytes);
    for (uint64_t i = 1; i < CopyModes::first_stay; ++i) CHECK(run(num_bytes) == mode);
    return mode;
  }
  std::vector<CopyMode> run_trial(size_t num_bytes = medium) {
    bool is_long = num_bytes >= CopyModes::long_bytes;
    size_t row = is_long ? CopyModes::long_calls_in_row : CopyModes::calls_in_row;
    size_t rounds = is_long ? CopyModes::num_long_rounds : CopyModes::num_rounds;
    std::vector<CopyMode> tried;
    for (size_t i = 0; i < rounds * num_tried * row; ++i) tried.push_back(run(num_bytes));
    return tried;
  }
};

HCCL_TEST(each_mode_is_tried_in_rows_and_the_fastest_stays) {
  for (bool has_single : {true, false}) {
    CopyMode second = has_single ? CopyMode::single : CopyMode::streamed;
    const CopyMode modes[] = {CopyMode::cached, second, CopyMode::half_streamed};
    for (CopyMode fastest : modes) {
      for (size_t num_bytes : {CopyModes::min_bytes, medium, CopyModes::long_bytes}) {
        Calls calls(has_single);
        calls.times_ns[static_cast<size_t>(fastest)] = 600;
        bool begins_single = has_single && num_bytes >= CopyModes::long_bytes;
        CHECK(calls.run_first(num_bytes) == (begins_single ? CopyMode::single : CopyMode::cached));
        std::vector<CopyMode> tried = calls.run_trial(num_bytes);
        size_t row = tried.size() / num_tried /
                     (num_bytes < CopyModes::long_bytes ? CopyModes::num_rounds : CopyModes::num_long_rounds);
        for (size_t i = 0; i < tried.size(); ++i) CHECK(tried[i] == modes[i / row % num_tried]);
        for (int i = 0; i < 100; ++i) CHECK(calls.run(num_bytes) == fastest);
      }
    }
  }
}

HCCL_TEST(long_calls_begin_with_what_is_mostly_best) {
  struct {
    std::vector<Op> ops;
    bool reduces;
    CopyMode with_single, without;
  } cases[] = {
      {{{OpKind::send, 0, 1, {}, {}}, {OpKind::recv, 0, 1, {}, {}}}, false, CopyMode::single, CopyMode::cached},
      {{{OpKind::send, 0, 1, {}, {}}}, true, CopyMode::half_streamed, CopyMode::half_streamed},
      {{{OpKind::send, 0, 1, {}, {}}}, false, CopyMode::single, CopyMode::half_streamed},
      {{{OpKind::send, 0, 2, {}, {}}, {OpKind::recv, 0, 1, {}, {}}}, true, CopyMode::single, CopyMode::cached},
      {{{OpKind::send, 0, 2, {}, {}}, {OpKind::recv, 0, 1, {}, {}}},
       false,
       CopyMode::half_streamed,
       CopyMode::half_streamed},
  };
  for (auto& one : cases) {
    for (bool has_single : {true, false}) {
      Calls calls(has_single);
      calls.plan.ops = one.ops;
      calls.plan.reduces = one.reduces;
      CHECK(calls.run_first(CopyModes::min_uncached_bytes) == (has_single ? one.with_single : one.without));
      bool exchanges = !one.reduces && one.with_single == CopyMode::single;
      bool begins_single = has_single && exchanges;
      CHECK(calls.run_first(CopyModes::long_bytes) == (begins_single ? CopyMode::single : CopyMode::cached));
      bool both_copy = has_single && !one.reduces && one.ops.size() == 1;
      for (size_t num_bytes : {medium, min_joint_bytes}) {
        CHECK(calls.run_first(num_bytes) == (both_copy ? CopyMode::single : CopyMode::cached));
      }
      CHECK(calls.run_first(CopyModes::min_bytes) == CopyMode::cached);
    }
  }
}

HCCL_TEST(ranks_that_share_cores_reduce_out_of_slots) {
  Calls calls;
  calls.modes.set_crowded(true);
  CHECK(calls.run_first(CopyModes::long_bytes) == CopyMode::single);
  calls.plan.reduces = true;
  CHECK(calls.run_first(CopyModes::min_uncached_bytes) == CopyMode::cached);
}

HCCL_TEST(a_gain_that_most_rows_do_not_see_changes_nothing) {
  for (size_t num_slow : {2u, 3u}) {
    Calls calls;
    calls.run_first();
    size_t row = CopyModes::calls_in_row;
    for (size_t i = 0; i < CopyModes::num_rounds * num_tried * row; ++i) {
      // The first calls of a row do not count.
      bool is_slow = i % row < CopyModes::num_ignored || i / row / num_tried < num_slow;
      calls.times_ns[3] = is_slow ? 9000 : 500;
      calls.run();
    }
    CHECK(calls.run() == (num_slow == 2 ? CopyMode::single : CopyMode::cached));
  }
}

HCCL_TEST(the_slowest_rank_of_a_node_decides) {
  Calls ranks[2];
  ranks[0].modes.add_peer(ranks[1].segment);
  ranks[1].modes.add_peer(ranks[0].segment);
  for (Calls& rank : ranks) rank.theirs->say_trial(CopyModes::first_stay, {1, 1, 1, 1});
  ranks[0].times_ns = {900, 900, 1000, 100};  // a root that runs ahead
  ranks[1].times_ns = {1000, 700, 1000, 2000};
  for (Calls& rank : ranks) rank.run_first();
  ranks[0].run_trial();
  CHECK(ranks[0].run() == CopyMode::single);  // the other one has still to say
  ranks[1].run_trial();
  for (Calls& rank : ranks) CHECK(rank.run() == CopyMode::half_streamed);
}

HCCL_TEST(ranks_with_other_calls_choose_alone) {
  Calls calls;
  calls.theirs->say_trial(7, {1, 1000, 1000, 1000});
  calls.times_ns[3] = 500;
  calls.run_first();
  calls.run_trial();
  for (int i = 0; i < 100; ++i) CHECK(calls.run() == CopyMode::single);
}

HCCL_TEST(what_one_rank_cannot_do_none_chooses) {
  Calls calls, others(false);
  calls.modes.add_peer(others.segment);
  calls.theirs->say_trial(CopyModes::first_stay, {1, 1, 1, 1});
  calls.times_ns[3] = 500;
  for (Calls* rank : {&others, &calls}) {
    rank->run_first();
    rank->run_trial();
  }
  CHECK(calls.run() == CopyMode::cached);
}

HCCL_TEST(a_rank_alone_on_its_node_tries_nothing) {
  CopyModes alone(Segment::create({}));
  Call call;
  call.total_bytes = medium;
  for (uint64_t i = 0; i < 100; ++i) {
    CHECK(alone.begin(call, i) == CopyMode::cached);
    alone.end(1);
  }
}

HCCL_TEST(small_and_compressed_calls_take_the_first) {
  Calls calls;
  calls.times_ns = {1000, 1, 1, 1};
  for (int i = 0; i < 100; ++i) CHECK(calls.run(CopyModes::min_bytes - 1) == CopyMode::cached);
  Call call;
  call.plan = &calls.plan;
  call.total_bytes = medium;
  call.compression = Compression::bf16;
  for (int i = 0; i < 100; ++i) {
    CHECK(calls.modes.begin(call, calls.sequence++) == CopyMode::cached);
    calls.modes.end(1);
  }
}

HCCL_TEST(sizes_and_plans_are_tried_apart_and_again_later) {
  Calls calls;
  calls.times_ns[1] = 100;
  calls.run_first();
  calls.run_trial();
  calls.times_ns[1] = 2000;
  CHECK(calls.run() == CopyMode::half_streamed);
  calls.run_first(medium / 2);
  calls.run_trial(medium / 2);
  CHECK(calls.run(medium / 2) == CopyMode::cached);
  for (uint64_t i = 1; i < CopyModes::shortest_stay; ++i) CHECK(calls.run() == CopyMode::half_streamed);
  calls.run_trial();
  CHECK(calls.run() == CopyMode::cached);
}

HCCL_TEST(blocks_that_may_differ_count_what_this_rank_gets) {
  Calls calls;
  Call call;
  call.plan = &calls.plan;
  call.dtype = DType::float32;
  call.output = {{nullptr, medium / 8}, {nullptr, medium / 8}};
  std::vector<CopyMode> tried;
  for (size_t i = 0; i < CopyModes::first_stay + 2 * CopyModes::calls_in_row; ++i) {
    tried.push_back(calls.modes.begin(call, calls.sequence++));
    calls.modes.end(1000);
  }
  CHECK(tried.back() == CopyMode::single);
  call.output.clear();
  CHECK(calls.modes.begin(call, calls.sequence++) == CopyMode::cached);
}

HCCL_TEST(a_failed_call_says_nothing) {
  Calls calls;
  Call call;
  call.plan = &calls.plan;
  call.total_bytes = medium;
  calls.run_first();
  calls.modes.begin(call, calls.sequence++);
  calls.modes.abandon();
  calls.modes.end(1);
  CHECK(calls.run_trial().front() == CopyMode::cached);
}

HCCL_TEST(many_kinds_are_forgotten) {
  Calls calls;
  std::vector<Plan> plans(1000);
  for (Plan& plan : plans) {
    Call call;
    call.plan = &plan;
    call.total_bytes = medium;
    calls.modes.begin(call, calls.sequence++);
    calls.modes.end(1000);
  }
  calls.run_first();
  CHECK(calls.run_trial().size() == 120);
}

}  // namespace
}  // namespace hccl::test
