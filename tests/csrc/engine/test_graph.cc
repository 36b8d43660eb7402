// Graphs: calls that are issued again and again, of one communicator and of two, out of place and
// with waits between them; and how they fail.
#include <algorithm>

#include "engine/graph/graph.h"
#include "ranks.h"

namespace hccl::test {
namespace {

using Engines = std::vector<Communicator*>;

Graph::Step step_of(size_t first, size_t last, size_t engine = 0) {
  return {{}, engine, first, last, false};
}

Cause cause_of(Graph& graph, const Engines& engines) {
  try {
    graph.run(engines, no_interrupt);
  } catch (const CommunicatorFailed& error) {
    return error.failure->cause;
  }
  return Failure{}.cause;
}

HCCL_TEST(each_replay_makes_all_calls) {
  for (const auto& layout : {std::vector<int>{0}, {0, 0}, {0, 1}, {0, 0, 1}}) {
    World world(layout);
    int n = world.size();
    world.run([&](int me) {
      Engines engines{world.ranks[static_cast<size_t>(me)].get()};
      std::vector<std::vector<float>> data(40, std::vector<float>(300));
      std::vector<Graph::Call> calls;
      for (auto& one : data) calls.push_back({all_reduce(mesh(me, n), one), 60});
      calls.push_back({all_reduce(one_shot(me, n), data[0]), 60});
      Graph graph(calls, {step_of(0, calls.size())});
      CHECK(graph.is_done() && graph.is_one_batch());
      for (int replay = 0; replay < 20; ++replay) {
        for (auto& one : data) std::fill(one.begin(), one.end(), 1.0f);
        if (replay % 2) {
          graph.run(engines, no_interrupt);
        } else {
          graph.start(engines);
          CHECK(graph.wait(engines, in(seconds(60)), no_interrupt));
        }
        CHECK(graph.is_done() && graph.first_failed() == calls.size());
        CHECK(data[0][299] == static_cast<float>(n * n) && data[39][0] == static_cast<float>(n));
      }
    });
  }
}

// What rank 0 sends goes through a sum, a recv, and a sum of the second communicator.
HCCL_TEST(steps_keep_the_order_between_communicators_and_transfers) {
  World one({0, 0}), other({0, 0});
  one.run([&](int me) {
    auto rank = static_cast<size_t>(me);
    Engines engines{one.ranks[rank].get(), other.ranks[rank].get()};
    std::vector<float> source(1000), sum(1000);
    std::vector<std::byte> bytes(4000);
    std::vector<Graph::Call> calls{{all_reduce(mesh(me, 2), sum), 60}};
    RequestPtr moved = transfer(me ? RequestKind::recv : RequestKind::send, bytes, any_rank, 7);
    if (me == 0) {
      moved->peer = 1;
      moved->address = reinterpret_cast<std::byte*>(sum.data());
    }
    calls.push_back({moved, 60});
    std::vector<float> last(1000);
    calls.push_back({all_reduce(mesh(me, 2), last), 60});
    std::vector<Graph::Step> steps{step_of(0, 1), step_of(1, 2), step_of(2, 3, 1)};
    calls[0].request->call.source = reinterpret_cast<std::byte*>(source.data());
    calls[2].request->call.source = me ? bytes.data() : reinterpret_cast<std::byte*>(sum.data());
    steps[1].awaited = {0};
    steps[1].blocks = true;
    Graph graph(calls, steps);
    CHECK(!graph.is_one_batch());
    for (int replay = 1; replay <= 20; ++replay) {
      std::fill(source.begin(), source.end(), static_cast<float>(replay + me));
      graph.run(engines, no_interrupt);
      CHECK(sum[999] == static_cast<float>(2 * replay + 1));
      CHECK(last[999] == static_cast<float>(4 * replay + 2));
    }
  });
}

HCCL_TEST(a_communicator_that_has_failed_leaves_the_others_alone) {
  World one({0, 0}), other({0, 0});
  one.run([&](int me) {
    auto rank = static_cast<size_t>(me);
    Engines engines{one.ranks[rank].get(), other.ranks[rank].get()};
    std::vector<float> data(10, 1.0f);
    Graph graph({{all_reduce(mesh(me, 2), data), 60}, {all_reduce(mesh(me, 2), data), 60}},
                {step_of(0, 1), step_of(1, 2, 1)});
    engines[1]->abort(Cause::aborted);
    CHECK(cause_of(graph, engines) == Cause::aborted);
    CHECK(graph.is_done() && graph.first_failed() == 1);
    engines[0]->run(all_reduce(mesh(me, 2), data), no_interrupt);
    CHECK(data[0] == 2.0f);
  });
}

HCCL_TEST(a_wait_that_is_too_short_leaves_the_replay_under_way) {
  World world({0, 0});
  std::atomic<bool> has_waited{false};
  world.run([&](int me) {
    Engines engines{world.ranks[static_cast<size_t>(me)].get()};
    std::vector<float> data(10, 1.0f);
    Graph graph({{all_reduce(mesh(me, 2), data), 60}, {all_reduce(mesh(me, 2), data), 60}},
                {step_of(0, 2)});
    while (me == 1 && !has_waited) std::this_thread::yield();
    graph.start(engines);
    if (me == 0) {
      CHECK(!graph.wait(engines, in(milliseconds(5)), no_interrupt));
      CHECK(!graph.is_done() && graph.first_open() == 0);
      has_waited = true;
    }
    CHECK(graph.wait(engines, in(seconds(60)), no_interrupt));
    CHECK(data[0] == 4.0f);
  });
}

}  // namespace
}  // namespace hccl::test
