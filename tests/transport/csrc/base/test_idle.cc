// Waiting while nothing moves: when it is time to sleep.
#include "progress/idle.h"

#include <thread>
#include <utility>

#include "check.h"

namespace hccl::test {
namespace {

constexpr int num_yields = 200;

int turns_awake(Idle& idle) {
  int turns = 0;
  while (idle.turn()) ++turns;
  return turns;
}

HCCL_TEST(yields_are_counted) {
  Idle idle(nullptr, num_yields);
  CHECK(turns_awake(idle) <= num_yields);
  CHECK(!idle.turn());
  idle.reset();
  CHECK(idle.turn());
}

// Where strangers take their whole time slices, 200 yields would last for seconds, and whoever
// waits would miss its deadline by as much.
HCCL_TEST(a_yield_that_lasts_is_the_last) {
  Idle idle(nullptr, num_yields);
  CHECK(idle.turn());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(!idle.turn());
  CHECK(!idle.turn());
  idle.reset();
  CHECK(idle.turn());
}

// Whom it waits for runs on its core: this wait yields, and sleeps after that; the next one spins.
HCCL_TEST(one_wait_yields_instead_of_spinning) {
  SpinRecord record;
  Idle idle(&record, num_yields);
  CHECK(idle.begins());
  idle.yield_instead();
  CHECK(turns_awake(idle) <= num_yields);
  idle.reset();
  CHECK(idle.begins());
}

HCCL_TEST(a_wait_in_vain_costs_the_next_few) {
  SpinRecord record;
  for (int expected : {1, 2, 4, 4}) {
    CHECK(record.may_spin());
    record.fail();
    for (int wait = 0; wait < expected; ++wait) CHECK(!record.may_spin());
  }
  CHECK(record.may_spin());
  record.succeed();
  CHECK(record.may_spin() && record.may_spin());
}

HCCL_TEST(a_long_wait_is_no_reason_to_sleep_at_once) {
  SpinRecord record;
  for (int wait = 0; wait < 3; ++wait) {
    Idle idle(&record, 0);
    while (idle.turn()) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    idle.reset();
    CHECK(record.may_spin());
  }
}

// Loses the core in a wait; false if another program took it before that.
bool lose_core(Idle& idle, bool yields, bool arrives) {
  if (yields) idle.yield_instead();
  for (int turn = 0; turn < (yields ? 1 : 64); ++turn) {
    if (!idle.turn()) return false;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  if (!arrives) CHECK(turns_awake(idle) < 64);
  idle.reset();
  return true;
}

// The message may be there when this thread gets its core back, or not yet.
HCCL_TEST(who_lost_its_core_sleeps_at_once_in_the_next_waits) {
  for (auto [yields, arrives] : {std::pair{false, false}, {false, true}, {true, false}}) {
    for (bool has_lost = false; !has_lost;) {
      SpinRecord record;
      Idle idle(&record, num_yields);
      has_lost = lose_core(idle, yields, arrives);
      if (!has_lost) continue;
      CHECK(!idle.turn());
      int num_asleep = 0;
      for (; record.must_sleep(); ++num_asleep) record.succeed();
      CHECK(num_asleep > 8);
      idle.reset();
      CHECK(idle.turn());
    }
  }
}

}  // namespace
}  // namespace hccl::test
