// Collectives between threads as ranks, over shared memory, sockets and both. Meant for the
// sanitizers: what they return and how they fail is tested from Python.
#include "ranks.h"

namespace hccl::test {
namespace {

const std::vector<std::vector<int>> layouts = {{0}, {0, 0}, {0, 1}, {0, 0, 0}, {0, 0, 1, 1, 1}};

std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 101);
  }
  return values;
}

std::vector<float> sum_of(int n, size_t count) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < n; ++rank) {
    std::vector<float> values = values_of(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

HCCL_TEST(all_reduce_gives_the_sum) {
  for (const auto& layout : layouts) {
    World world(layout);
    int n = world.size();
    world.run([&](int me) {
      for (size_t count : {0ul, 1ul, 2ul, 7ul, 30ul, 5000ul, 100003ul, 600000ul}) {
        for (const auto& plan : {one_shot(me, n), mesh(me, n)}) {
          std::vector<float> data = values_of(me, count);
          world.ranks[static_cast<size_t>(me)]->run(all_reduce(plan, data), no_interrupt);
          CHECK(data == sum_of(n, count));
        }
      }
    });
  }
}

void check_background_calls(bool on_full_cores, void (Communicator::*start)(const RequestPtr&)) {
  for (const auto& layout : layouts) {
    World world(layout);
    int n = world.size();
    for (auto& rank : world.ranks) rank->set_ranks_on_host(n, on_full_cores ? n : 2 * n);
    world.run([&](int me) {
      Communicator& mine = *world.ranks[static_cast<size_t>(me)];
      std::vector<std::vector<float>> data(20, values_of(me, 20000));
      std::vector<RequestPtr> requests;
      for (auto& one : data) {
        requests.push_back(all_reduce(mesh(me, n), one));
        (mine.*start)(requests.back());
      }
      // Half of the ranks wait, half only look.
      for (const RequestPtr& request : requests) {
        if (me % 2) CHECK(mine.wait(request, in(seconds(60)), no_interrupt));
        while (!request->is_done()) std::this_thread::yield();
      }
      for (auto& one : data) CHECK(one == sum_of(n, 20000));
    });
  }
}

HCCL_TEST(background_calls_finish_without_a_waiter) {
  check_background_calls(false, &Communicator::start);
}

HCCL_TEST(background_calls_finish_without_a_waiter_where_whoever_starts_them_moves_them) {
  check_background_calls(true, &Communicator::start_moving);
}

// Rank 0 reduces what ranks 1 and 2 send. Rank 2 leaves when it has sent; rank 1 sends only when
// rank 0 has long gone to sleep over it: that rank 2 left must not fail rank 0, which has all of
// it.
HCCL_TEST(what_a_rank_sent_before_it_left_counts) {
  World world({0, 0, 0});
  std::vector<std::vector<float>> data;
  for (int rank = 0; rank < 3; ++rank) data.push_back(values_of(rank, 10));
  auto request_of = [&](int me) {
    auto plan = std::make_shared<Plan>();
    plan->data_chunks = 1;
    ChunkRef all{Buffer::data, 0, 1, -1};
    plan->peers = me == 0 ? std::vector<int>{1, 2} : std::vector<int>{0};
    if (me == 0) {
      plan->ops.push_back({OpKind::recv_reduce, 0, 2, all, {}});
    } else {
      plan->ops.push_back({OpKind::send, 0, 1, {}, all});
    }
    return all_reduce(plan, data[static_cast<size_t>(me)]);
  };
  world.ranks[2]->run(request_of(2), no_interrupt);
  world.ranks[2]->close();
  std::thread root([&] { world.ranks[0]->run(request_of(0), no_interrupt); });
  const Counter& sleeps = world.ranks[0]->statistics().sleeps;
  while (sleeps.value() < 3) std::this_thread::yield();
  world.ranks[1]->run(request_of(1), no_interrupt);
  root.join();
  CHECK(data[0] == sum_of(3, 10));
}

}  // namespace
}  // namespace hccl::test
