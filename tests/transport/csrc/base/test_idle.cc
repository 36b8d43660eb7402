// Waiting while nothing moves: when it is time to sleep.
#include "progress/idle.h"

#include <sched.h>

#include <atomic>
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

bool spin(Idle& idle) {
  int turns = 0;
  while (turns < 64 && idle.turn()) ++turns;
  return turns == 64;  // else another program took the core
}

void check_sleeps_at_once(Idle& idle, SpinRecord& record) {
  CHECK(!idle.turn());
  int num_asleep = 0;
  for (; record.must_sleep(); ++num_asleep) record.succeed();
  CHECK(num_asleep > 8);
  idle.reset();
  CHECK(idle.turn());
}

HCCL_TEST(who_lost_its_core_sleeps_at_once_in_the_next_waits) {
  for (bool yields : {false, true}) {
    for (bool has_lost = false; !has_lost;) {
      SpinRecord record;
      Idle idle(&record, num_yields);
      if (yields) idle.yield_instead();
      has_lost = yields ? idle.turn() : spin(idle);
      if (!has_lost) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      CHECK(turns_awake(idle) < 64);
      idle.reset();
      check_sleeps_at_once(idle, record);
    }
  }
}

// The message is there when this thread gets its core back. A thread that moved a long message had
// its core all the time.
HCCL_TEST(a_message_after_a_loss_is_told_from_a_long_one) {
  cpu_set_t usable, one;
  sched_getaffinity(0, sizeof usable, &usable);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);
  for (bool is_lost : {true, false}) {
    std::atomic<bool> ends{false};
    std::thread other([&] {  // on this core
      while (is_lost && !ends.load()) {
      }
    });
    // A busy machine may never leave this thread its core for so long.
    bool is_done = false;
    for (int tries = 0; !is_done && (is_lost || tries < 100); ++tries) {
      SpinRecord record;
      Idle idle(&record, num_yields);
      was_preempted();
      long before = count_preemptions();
      if (!spin(idle)) continue;
      auto end = std::chrono::steady_clock::now() + longest_spin * 6 / 5;
      while (std::chrono::steady_clock::now() < end || (is_lost && count_preemptions() == before)) {
      }
      idle.reset();
      is_done = (count_preemptions() != before) == is_lost;
      if (!is_done) continue;
      if (is_lost) {
        check_sleeps_at_once(idle, record);
      } else {
        CHECK(!record.must_sleep() && idle.turn());
      }
    }
    ends.store(true);
    other.join();
  }
  sched_setaffinity(0, sizeof usable, &usable);
}

}  // namespace
}  // namespace hccl::test
