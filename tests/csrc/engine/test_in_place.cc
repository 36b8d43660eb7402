// Collectives on registered memory, threads as ranks: results, who falls back, and what fails.
#include <algorithm>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "ranks.h"

namespace hccl::test {
namespace {

constexpr size_t num_elements = 100'003;  // of float32: above the least size, and odd

// Memory of an arena, or of the heap for nullptr.
class Floats {
 public:
  Floats(std::shared_ptr<Arena> arena, size_t count, float value)
      : arena_(std::move(arena)), count_(count) {
    if (arena_) {
      data_ = reinterpret_cast<float*>(arena_->allocate(count * sizeof(float)));
    } else {
      heap_.resize(count);
      data_ = heap_.data();
    }
    std::fill(data_, data_ + count, value);
  }
  ~Floats() {
    if (arena_) arena_->release(reinterpret_cast<std::byte*>(data_));
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  Block block(size_t begin, size_t count) const {
    return {reinterpret_cast<std::byte*>(data_ + begin), count};
  }
  Block all() const { return block(0, count_); }
  bool are(float value, size_t begin, size_t count) const {
    return std::all_of(data_ + begin, data_ + begin + count, [&](float x) { return x == value; });
  }
  bool are(float value) const { return are(value, 0, count_); }

 private:
  std::shared_ptr<Arena> arena_;
  std::vector<float> heap_;
  float* data_;
  size_t count_;
};

std::shared_ptr<Arena> new_arena() { return Arena::create(size_t{256} << 20); }

struct RegisteredWorld : World {
  explicit RegisteredWorld(size_t n, std::shared_ptr<Arena> its_arena = new_arena())
      : World(std::vector<int>(n, 0), 131072, 0, connect_loopback, its_arena),
        arena(std::move(its_arena)) {}
  const std::shared_ptr<Arena> arena;

  uint64_t num_in_place() const { return ranks[0]->statistics().in_place.value(); }
};

RequestPtr request_of(Collective collective, std::shared_ptr<Plan> plan, size_t total_elements,
                      std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto request = std::make_shared<Request>();
  request->deadline = in(timeout);
  request->plan = plan;
  request->call.plan = plan.get();
  request->call.dtype = DType::float32;
  request->call.fingerprint = uint64_t{1} << 16;
  request->call.collective = collective;
  request->call.total_bytes = total_elements * sizeof(float);
  return request;
}

void all_reduce_of_every_rank_count() {
  for (size_t n = 1; n <= 5; ++n) {
    RegisteredWorld world(n);
    world.run([&](int me) {
      Floats data(world.arena, num_elements, static_cast<float>(me + 1));
      for (int i = 0; i < 20; ++i) {
        auto request = request_of(Collective::all_reduce, mesh(me, world.size()), num_elements);
        request->call.data = data.all();
        request->call.op = ReduceOp::avg;
        request->call.divide_data = true;
        world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
        CHECK(data.are(static_cast<float>(n + 1) / 2));
      }
    });
    CHECK(world.num_in_place() == (n > 1 ? 20 : 0));
  }
}

void broadcast_from_every_root() {
  RegisteredWorld world(3);
  world.run([&](int me) {
    for (int root = 0; root < 3; ++root) {
      Floats data(world.arena, num_elements, static_cast<float>(me));
      auto request = request_of(Collective::broadcast, mesh(me, 3), num_elements);
      request->call.data = data.all();
      request->call.root = root;
      world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
      CHECK(data.are(static_cast<float>(root)));
    }
  });
  CHECK(world.num_in_place() == 3);
}

void all_gather_gives_or_takes() {
  RegisteredWorld world(3);
  for (bool give : {true, false}) {
    world.run([&](int me) {
      Floats input(world.arena, num_elements, static_cast<float>(me));
      Floats output(give ? world.arena : nullptr, 3 * num_elements, -1);
      auto request = request_of(Collective::all_gather, mesh(me, 3), 3 * num_elements);
      request->call.input = {input.all()};
      for (size_t r = 0; r < 3; ++r) {
        request->call.output.push_back(output.block(r * num_elements, num_elements));
      }
      world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
      for (size_t r = 0; r < 3; ++r) {
        CHECK(output.are(static_cast<float>(r), r * num_elements, num_elements));
      }
    });
  }
  CHECK(world.num_in_place() == 2);
}

void reduce_scatter_leaves_the_input_alone() {
  RegisteredWorld world(4);
  world.run([&](int me) {
    Floats input(world.arena, 4 * num_elements, static_cast<float>(me + 1));
    Floats output(nullptr, num_elements, 0);
    auto request = request_of(Collective::reduce_scatter, mesh(me, 4), 4 * num_elements);
    for (size_t r = 0; r < 4; ++r) {
      request->call.input.push_back(input.block(r * num_elements, num_elements));
    }
    request->call.output = {output.all()};
    world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
    CHECK(output.are(10) && input.are(static_cast<float>(me + 1)));
  });
  CHECK(world.num_in_place() == 1);
}

// Plans and work in place take turns on the same lanes, now on one rank's account, now on another's.
void one_rank_without_makes_all_run_the_plan() {
  RegisteredWorld world(3);
  world.run([&](int me) {
    for (int round = 0; round < 12; ++round) {
      bool outside = round % 4 == me;
      Floats data(outside ? nullptr : world.arena, num_elements, 1);
      auto request = request_of(Collective::all_reduce, mesh(me, 3), num_elements);
      request->call.data = data.all();
      world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
      CHECK(data.are(3));
    }
  });
  CHECK(world.num_in_place() == 3);
}

void small_calls_run_the_plan() {
  RegisteredWorld world(2);
  world.run([&](int me) {
    Floats data(world.arena, 100, 1);
    auto request = request_of(Collective::all_reduce, mesh(me, 2), 100);
    request->call.data = data.all();
    world.ranks[static_cast<size_t>(me)]->run(request, no_interrupt);
    CHECK(data.are(2));
  });
  CHECK(world.num_in_place() == 0);
}

void absent_rank_is_named_and_memory_is_retired() {
  RegisteredWorld world(3);
  std::byte* lent[3] = {};
  world.run([&](int me) {
    if (me == 1) return;
    Floats data(world.arena, num_elements, 1);
    lent[me] = data.all().address;
    auto request = request_of(Collective::all_reduce, mesh(me, 3), num_elements,
                              std::chrono::milliseconds(200));
    request->call.data = data.all();
    Failure failure = failure_of(*world.ranks[static_cast<size_t>(me)], request);
    CHECK(failure.cause == Cause::timed_out && failure.rank == 1);
  });
  Floats a(world.arena, num_elements, 0), b(world.arena, num_elements, 0);
  for (const Floats* one : {&a, &b}) {
    CHECK(one->all().address != lent[0] && one->all().address != lent[2]);
  }
}

void other_block_sizes_are_a_mismatch() {
  RegisteredWorld world(2);
  world.run([&](int me) {
    size_t mine = num_elements + static_cast<size_t>(me);
    Floats input(world.arena, mine, 1), output(world.arena, 2 * num_elements + 1, 0);
    auto request = request_of(Collective::all_gather, mesh(me, 2), 2 * num_elements + 1);
    request->call.input = {input.all()};
    request->call.output = {output.block(0, mine), output.block(mine, mine)};  // both as mine
    Failure failure = failure_of(*world.ranks[static_cast<size_t>(me)], request);
    CHECK(failure.cause == Cause::mismatch);
    CHECK(failure.sent_bytes && failure.expected_bytes);
  });
}

void other_call_is_a_mismatch() {
  RegisteredWorld world(2);
  world.run([&](int me) {
    size_t count = me == 0 ? num_elements : 100;
    Floats data(world.arena, count, 1);
    auto request = request_of(Collective::all_reduce, mesh(me, 2), count);
    request->call.data = data.all();
    request->call.fingerprint += count << 20;
    Failure failure = failure_of(*world.ranks[static_cast<size_t>(me)], request);
    CHECK(failure.cause == Cause::mismatch);
  });
}

// Aborted at any moment, every rank comes out, and nothing is written to what is allocated later.
void abort_in_the_middle_ends_all() {
  for (int after_us = 0; after_us < 2000; after_us += 100) {
    RegisteredWorld world(2);
    Coordinator coordinator(world);
    world.run([&](int me) {
      auto& rank = world.ranks[static_cast<size_t>(me)];
      auto data = std::make_unique<Floats>(world.arena, 16 * num_elements, 1);
      std::thread aborter;
      if (me == 1) {
        aborter = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::microseconds(after_us));
          rank->abort("on purpose");
        });
      }
      try {
        for (int i = 0; i < 10'000; ++i) {
          auto request = request_of(Collective::all_reduce, mesh(me, 2), 16 * num_elements);
          request->call.data = data->all();
          rank->run(request, no_interrupt);
        }
        CHECK(false);
      } catch (const CommunicatorFailed& failed) {
        CHECK(failed.failure->cause == Cause::aborted);
      }
      if (aborter.joinable()) aborter.join();
      data.reset();
      Floats fresh(world.arena, 16 * num_elements, 42);
      CHECK(fresh.are(42));
    });
  }
}

// Rank 1 has done its share, fails, and uses its memory again before rank 0 has read it.
void memory_of_a_failed_call_is_never_taken_for_data() {
  RegisteredWorld world(2);
  Coordinator coordinator(world);
  std::latch asked(1), reused(1);
  auto request_for = [&](int me, const Floats& input, const Floats& output) {
    auto request = request_of(Collective::reduce_scatter, mesh(me, 2), 2 * num_elements);
    request->call.input = {input.block(0, num_elements), input.block(num_elements, num_elements)};
    request->call.output = {output.all()};
    return request;
  };
  world.run([&](int me) {
    auto& rank = world.ranks[static_cast<size_t>(me)];
    Floats input(world.arena, 2 * num_elements, 1), output(world.arena, num_elements, 0);
    auto request = request_for(me, input, output);
    Failure failure;
    if (me == 0) {
      // Asked while rank 1 is not there yet: everything after its announcement has to wait.
      failure = failure_of(*rank, request, [&] {
        asked.count_down(asked.try_wait() ? 0 : 1);
        reused.wait();
      });
    } else {
      asked.wait();
      std::thread aborter([&] {
        // Nothing but the other's share is left to wait for.
        while (rank->statistics().sleeps.value() == 0) std::this_thread::yield();
        rank->abort("on purpose");
      });
      failure = failure_of(*rank, request);
      aborter.join();
      std::fill_n(reinterpret_cast<float*>(input.all().address), 2 * num_elements, 1000.0f);
      reused.count_down();
    }
    CHECK(failure.cause == Cause::aborted);
  });
}

}  // namespace
}  // namespace hccl::test

int main(int argc, char** argv) {
  using namespace hccl::test;
  const Test tests[] = {
      {"all_reduce_of_every_rank_count", all_reduce_of_every_rank_count},
      {"broadcast_from_every_root", broadcast_from_every_root},
      {"all_gather_gives_or_takes", all_gather_gives_or_takes},
      {"reduce_scatter_leaves_the_input_alone", reduce_scatter_leaves_the_input_alone},
      {"one_rank_without_makes_all_run_the_plan", one_rank_without_makes_all_run_the_plan},
      {"small_calls_run_the_plan", small_calls_run_the_plan},
      {"absent_rank_is_named_and_memory_is_retired", absent_rank_is_named_and_memory_is_retired},
      {"other_block_sizes_are_a_mismatch", other_block_sizes_are_a_mismatch},
      {"other_call_is_a_mismatch", other_call_is_a_mismatch},
      {"abort_in_the_middle_ends_all", abort_in_the_middle_ends_all},
      {"memory_of_a_failed_call_is_never_taken_for_data",
       memory_of_a_failed_call_is_never_taken_for_data},
  };
  run_tests(tests, argc > 1 ? argv[1] : nullptr);
}
