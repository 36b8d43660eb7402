// Which way the large payloads of a kind of call take, by trial.
#include "engine/collective/copy_modes.h"

#include <memory>
#include <vector>

#include "check.h"
#include "lanes/shared_memory/joint_copy.h"

namespace hccl::test {
namespace {

constexpr size_t medium = 1 << 19;

ModeTimes all_alike(uint64_t time_ns = 1000) {
  ModeTimes times_ns;
  times_ns.fill(time_ns);
  return times_ns;
}

// Calls of one plan, whose times are given by mode, of a rank and another one of its node.
struct Calls {
  std::shared_ptr<Segment> segment = Segment::create({}), theirs = Segment::create({});
  CopyModes modes{segment};
  Plan plan;
  uint64_t sequence = 0;
  ModeTimes times_ns = all_alike();

  explicit Calls(bool has_single = true) {
    plan.peers = {0, 2};
    plan.reduces = false;
    plan.ops = {{OpKind::send, 0, 1, {}, {}}, {OpKind::recv, 0, 1, {}, {}}};
    modes.add_peer(theirs);
    if (has_single) modes.allow_single();
  }
  uint64_t& time_of(CopyMode mode) { return times_ns[static_cast<size_t>(mode)]; }
  CopyMode run(size_t num_bytes = medium) {
    Call call;
    call.plan = &plan;
    call.total_bytes = num_bytes;
    CopyMode mode = modes.begin(call, sequence++);
    modes.end(times_ns[static_cast<size_t>(mode)]);
    return mode;
  }
  // Returns the mode of all of them.
  CopyMode run_alike(uint64_t num_calls, size_t num_bytes = medium) {
    CopyMode mode = run(num_bytes);
    for (uint64_t i = 1; i < num_calls; ++i) CHECK(run(num_bytes) == mode);
    return mode;
  }
  // Until the first trial.
  CopyMode run_first(size_t num_bytes = medium) {
    bool is_quick = num_bytes >= CopyModes::long_bytes && num_bytes < CopyModes::max_quick_bytes;
    return run_alike(is_quick ? CopyModes::first_quick_stay : CopyModes::first_stay, num_bytes);
  }
  std::vector<CopyMode> run_trial(size_t num_bytes = medium,
                                  CopyModes::Shape shape = CopyModes::short_calls) {
    std::vector<CopyMode> tried;
    for (size_t i = 0; i < shape.num_calls(); ++i) tried.push_back(run(num_bytes));
    return tried;
  }
};

std::vector<CopyMode> in_rows(const std::vector<CopyMode>& modes, CopyModes::Shape shape) {
  std::vector<CopyMode> expected;
  for (size_t round = 0; round < shape.num_rounds; ++round) {
    for (CopyMode mode : modes) expected.insert(expected.end(), shape.calls_in_row, mode);
  }
  return expected;
}

HCCL_TEST(each_mode_is_tried_in_rows_and_the_fastest_stays) {
  for (bool has_single : {true, false}) {
    std::vector<CopyMode> modes{CopyMode::cached, has_single ? CopyMode::single : CopyMode::cached,
                                CopyMode::sender_streamed, CopyMode::streamed,
                                CopyMode::receiver_streamed};
    for (CopyMode fastest : modes) {
      for (size_t num_bytes : {CopyModes::min_bytes, medium}) {
        Calls calls(has_single);
        calls.time_of(fastest) = 600;
        CHECK(calls.run_first(num_bytes) == CopyMode::cached);
        CHECK(calls.run_trial(num_bytes) == in_rows(modes, CopyModes::short_calls));
        CHECK(calls.run_alike(CopyModes::shortest_stay, num_bytes) == fastest);
      }
      for (size_t num_bytes : {CopyModes::long_bytes, CopyModes::max_quick_bytes}) {
        Calls calls(has_single);
        calls.time_of(fastest) = 600;
        CHECK(calls.run_first(num_bytes) == (has_single ? CopyMode::single : CopyMode::cached));
        if (num_bytes < CopyModes::max_quick_bytes) {
          CHECK(calls.run_trial(num_bytes, CopyModes::quick) == in_rows(modes, CopyModes::quick));
          CHECK(calls.run_alike(CopyModes::first_stay, num_bytes) == fastest);
        }
        CHECK(calls.run_trial(num_bytes, CopyModes::long_calls) ==
              in_rows(modes, CopyModes::long_calls));
        CHECK(calls.run_alike(CopyModes::shortest_stay, num_bytes) == fastest);
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
      {{{OpKind::send, 0, 1, {}, {}}, {OpKind::recv, 0, 1, {}, {}}},
       false,
       CopyMode::single,
       CopyMode::cached},
      {{{OpKind::send, 0, 1, {}, {}}}, true, CopyMode::sender_streamed, CopyMode::sender_streamed},
      {{{OpKind::send, 0, 1, {}, {}}}, false, CopyMode::single, CopyMode::receiver_streamed},
      {{{OpKind::send, 0, 2, {}, {}}, {OpKind::recv, 0, 1, {}, {}}},
       true,
       CopyMode::single,
       CopyMode::cached},
      {{{OpKind::send, 0, 2, {}, {}}, {OpKind::recv, 0, 1, {}, {}}},
       false,
       CopyMode::receiver_streamed,
       CopyMode::receiver_streamed},
  };
  for (auto& one : cases) {
    for (bool has_single : {true, false}) {
      Calls calls(has_single);
      calls.plan.ops = one.ops;
      calls.plan.reduces = one.reduces;
      CHECK(calls.run_first(CopyModes::min_uncached_bytes) ==
            (has_single ? one.with_single : one.without));
      bool exchanges = !one.reduces && one.with_single == CopyMode::single;
      bool begins_single = has_single && exchanges;
      CHECK(calls.run_first(CopyModes::long_bytes) ==
            (begins_single ? CopyMode::single : CopyMode::cached));
      bool both_copy = has_single && !one.reduces && one.ops.size() == 1;
      for (size_t num_bytes : {medium, min_joint_bytes}) {
        CHECK(calls.run_first(num_bytes) == (both_copy ? CopyMode::single : CopyMode::cached));
      }
      CHECK(calls.run_first(CopyModes::min_bytes) == CopyMode::cached);
    }
  }
}

HCCL_TEST(ranks_that_share_cores_take_slots_for_longer_and_try_late) {
  Calls calls;
  calls.modes.set_crowded(true);
  calls.time_of(CopyMode::streamed) = 600;
  for (size_t num_bytes : {medium, CopyModes::long_bytes}) {
    CHECK(calls.run_alike(CopyModes::shortest_stay, num_bytes) == CopyMode::cached);
    calls.run_trial(num_bytes, CopyModes::crowded_calls);
    CHECK(calls.run(num_bytes) == CopyMode::streamed);
  }
  CHECK(calls.run(CopyModes::min_uncached_bytes) == CopyMode::single);
  Calls reducing;
  reducing.modes.set_crowded(true);
  reducing.plan.reduces = true;
  CHECK(reducing.run(CopyModes::min_uncached_bytes) == CopyMode::cached);
}

HCCL_TEST(a_small_gain_changes_nothing) {
  for (bool is_crowded : {false, true}) {
    CopyModes::Shape shape = is_crowded ? CopyModes::crowded_calls : CopyModes::short_calls;
    uint64_t margin = shape.margin;
    for (bool too_little : {true, false}) {
      Calls calls;
      calls.modes.set_crowded(is_crowded);
      calls.times_ns = all_alike(100000);
      calls.time_of(CopyMode::receiver_streamed) = 1000 * margin;
      calls.time_of(CopyMode::cached) = 1000 * margin + 1000 + (too_little ? 0 : 1);
      calls.run_alike(is_crowded ? CopyModes::shortest_stay : CopyModes::first_stay);
      calls.run_trial(medium, shape);
      CHECK(calls.run() == (too_little ? CopyMode::cached : CopyMode::receiver_streamed));
    }
  }
}

// Its calls end while there are slots left, whatever they cost those that read them.
HCCL_TEST(what_a_rank_takes_that_only_sends_does_not_count) {
  Calls ranks[2];
  for (int i = 0; i < 2; ++i) {
    ranks[i].plan.reduces = true;
    ranks[i].plan.ops.resize(1);
    ranks[i].plan.ops[0].kind = i == 0 ? OpKind::send : OpKind::recv;
    ranks[i].modes.add_peer(ranks[1 - i].segment);
    ranks[i].theirs->say_trial(CopyModes::first_stay, {all_alike(1), num_copy_modes});
  }
  ranks[0].times_ns = all_alike(2000);
  ranks[0].time_of(CopyMode::receiver_streamed) = 100;
  ranks[1].time_of(CopyMode::streamed) = 500;
  for (Calls& rank : ranks) rank.run_first();
  ranks[0].run_trial();
  CHECK(ranks[0].run() == CopyMode::cached);  // the other one has still to say
  ranks[1].run_trial();
  for (Calls& rank : ranks) CHECK(rank.run() == CopyMode::streamed);
}

HCCL_TEST(a_gain_that_most_rows_do_not_see_changes_nothing) {
  for (size_t num_slow : {2u, 3u}) {
    Calls calls;
    calls.run_first();
    constexpr CopyModes::Shape shape = CopyModes::short_calls;
    size_t row = shape.calls_in_row;
    for (size_t i = 0; i < shape.num_calls(); ++i) {
      // The first calls of a row do not count.
      bool is_slow = i % row < shape.num_ignored || i / row / num_copy_modes < num_slow;
      calls.time_of(CopyMode::single) = is_slow ? 9000 : 500;
      calls.run();
    }
    CHECK(calls.run() == (num_slow == 2 ? CopyMode::single : CopyMode::cached));
  }
}

// A rank that is late once makes a call take long in one of the two rounds.
HCCL_TEST(a_quick_trial_counts_the_faster_round) {
  for (bool is_much : {true, false}) {
    Calls calls;
    calls.run_first(CopyModes::long_bytes);
    constexpr CopyModes::Shape shape = CopyModes::quick;
    for (size_t i = 0; i < shape.num_calls(); ++i) {
      calls.times_ns = all_alike(i < shape.num_calls() / 2 ? 1000 : 5000);
      calls.time_of(CopyMode::cached) = i < shape.num_calls() / 2 ? 9000 : is_much ? 700 : 900;
      calls.run(CopyModes::long_bytes);
    }
    CHECK(calls.run(CopyModes::long_bytes) == (is_much ? CopyMode::cached : CopyMode::single));
  }
}

HCCL_TEST(a_rank_that_sends_nothing_has_no_mode_of_its_own) {
  Calls calls;
  calls.plan.ops = {{OpKind::recv, 0, 1, {}, {}}};
  calls.theirs->say_trial(CopyModes::first_stay,
                          {all_alike(1), static_cast<uint64_t>(CopyMode::streamed)});
  calls.time_of(CopyMode::single) = 950;
  calls.run_first();
  calls.run_trial();
  CHECK(calls.run() == CopyMode::streamed);  // what the sender had is as good
}

HCCL_TEST(the_slowest_rank_of_a_node_decides) {
  Calls ranks[2];
  ranks[0].modes.add_peer(ranks[1].segment);
  ranks[1].modes.add_peer(ranks[0].segment);
  for (Calls& rank : ranks) {
    rank.theirs->say_trial(CopyModes::first_stay, {all_alike(1), num_copy_modes});
  }
  ranks[0].time_of(CopyMode::single) = 100;  // this one sees little of what it costs
  ranks[1].time_of(CopyMode::single) = 2000;
  for (Calls& rank : ranks) rank.time_of(CopyMode::receiver_streamed) = 800;
  for (Calls& rank : ranks) rank.run_first();
  ranks[0].run_trial();
  CHECK(ranks[0].run() == CopyMode::single);  // the other one has still to say
  ranks[1].run_trial();
  for (Calls& rank : ranks) CHECK(rank.run() == CopyMode::receiver_streamed);
}

HCCL_TEST(ranks_that_had_different_modes_take_the_fastest) {
  for (bool other_sends : {true, false}) {
    Calls calls;
    TrialReport theirs{all_alike(),
                       other_sends ? static_cast<uint64_t>(CopyMode::streamed) : num_copy_modes};
    calls.theirs->say_trial(CopyModes::first_stay, theirs);
    calls.time_of(CopyMode::single) = 980;
    calls.run_first();
    calls.run_trial();
    CHECK(calls.run() == (other_sends ? CopyMode::single : CopyMode::cached));
  }
}

HCCL_TEST(ranks_with_other_calls_choose_alone) {
  Calls calls;
  ModeTimes slow_single = all_alike();
  slow_single[static_cast<size_t>(CopyMode::single)] = 90000;  // of a row
  calls.theirs->say_trial(CopyModes::first_stay + trial_cells,
                          {slow_single, 0});  // in the same cell
  calls.time_of(CopyMode::single) = 500;
  calls.run_first();
  calls.run_trial();
  for (int i = 0; i < 100; ++i) CHECK(calls.run() == CopyMode::single);
}

HCCL_TEST(what_one_rank_cannot_do_none_chooses) {
  Calls calls, others(false);
  calls.modes.add_peer(others.segment);
  calls.theirs->say_trial(CopyModes::first_stay, {all_alike(1), num_copy_modes});
  calls.time_of(CopyMode::single) = 500;
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
  constexpr uint64_t many = 2 * CopyModes::shortest_stay;
  Calls calls, crowded;
  calls.times_ns = crowded.times_ns = all_alike(1);
  calls.time_of(CopyMode::cached) = crowded.time_of(CopyMode::cached) = 1000;
  crowded.modes.set_crowded(true);
  CHECK(calls.run_alike(many, CopyModes::min_bytes - 1) == CopyMode::cached);
  CHECK(crowded.run_alike(many, CopyModes::min_crowded_bytes - 1) == CopyMode::cached);
  Call call;
  call.plan = &calls.plan;
  call.total_bytes = medium;
  call.compression = Compression::bf16;
  for (uint64_t i = 0; i < many; ++i) {
    CHECK(calls.modes.begin(call, calls.sequence++) == CopyMode::cached);
    calls.modes.end(1);
  }
}

HCCL_TEST(sizes_and_plans_are_tried_apart_and_again_later) {
  Calls calls;
  calls.time_of(CopyMode::receiver_streamed) = 100;
  calls.run_first();
  calls.run_trial();
  calls.time_of(CopyMode::receiver_streamed) = 2000;
  CHECK(calls.run() == CopyMode::receiver_streamed);
  calls.run_first(medium / 2);
  calls.run_trial(medium / 2);
  CHECK(calls.run(medium / 2) == CopyMode::cached);
  for (uint64_t i = 1; i < CopyModes::shortest_stay; ++i) {
    CHECK(calls.run() == CopyMode::receiver_streamed);
  }
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
  for (size_t i = 0; i < CopyModes::first_stay + 2 * CopyModes::short_calls.calls_in_row; ++i) {
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
  CHECK(calls.run_trial().back() == CopyMode::receiver_streamed);
  CHECK(calls.run_alike(CopyModes::shortest_stay) == CopyMode::cached);
}

HCCL_TEST(many_kinds_are_forgotten) {
  Calls calls;
  calls.run_alike(CopyModes::first_stay - 1);
  std::vector<Plan> plans(1000);
  for (Plan& plan : plans) {
    Call call;
    call.plan = &plan;
    call.total_bytes = medium;
    calls.modes.begin(call, calls.sequence++);
    calls.modes.end(1000);
  }
  CHECK(calls.run_first() == CopyMode::cached);  // the count begins again
  CHECK(calls.run_trial().back() == CopyMode::receiver_streamed);
}

}  // namespace
}  // namespace hccl::test
