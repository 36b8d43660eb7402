// Waiting while nothing moves: when it is time to sleep.
#include "progress/idle.h"

#include <thread>

#include "check.h"

namespace hccl::test {
namespace {

constexpr int num_yields = 200;

int turns_awake(Idle& idle) {
  int turns = 0;
  while (idle.turn()) ++turns;
  return turns;
}

void yields_are_counted() {
  Idle idle(nullptr, num_yields);
  CHECK(turns_awake(idle) <= num_yields);
  CHECK(!idle.turn());
  idle.reset();
  CHECK(idle.turn());
}

// Where strangers take their whole time slices, 200 yields would last for seconds, and whoever waits
// would miss its deadline by as much.
void a_yield_that_lasts_is_the_last() {
  Idle idle(nullptr, num_yields);
  CHECK(idle.turn());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!idle.turn());
  CHECK(!idle.turn());
  idle.reset();
  CHECK(idle.turn());
}

void who_gives_up_sleeps() {
  Idle idle(nullptr, num_yields);
  idle.give_up();
  CHECK(!idle.turn());
}

}  // namespace
}  // namespace hccl::test

int main(int argc, char** argv) {
  using namespace hccl::test;
  const Test tests[] = {
      {"yields_are_counted", yields_are_counted},
      {"a_yield_that_lasts_is_the_last", a_yield_that_lasts_is_the_last},
      {"who_gives_up_sleeps", who_gives_up_sleeps},
  };
  run_tests(tests, argc > 1 ? argv[1] : nullptr);
}
