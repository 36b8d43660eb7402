// How a failure becomes one: proposed by the rank that notices it, decided elsewhere, the same on all.
#include <atomic>
#include <cstring>

#include "ranks.h"
#include "wire.h"

namespace hccl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

template <typename Condition>
bool eventually(Condition condition, milliseconds time = seconds(20)) {
  for (Deadline until = in(time); Clock::now() < until; std::this_thread::yield()) {
    if (condition()) return true;
  }
  return condition();
}

Failure failure_of(Communicator& communicator, const RequestPtr& request) {
  try {
    communicator.run(request, no_interrupt);
  } catch (const CommunicatorFailed& error) {
    return error.failure;
  }
  return {};
}

Failure verdict(const char* text) {
  Failure failure;
  failure.kind = FailureKind::peer_lost;
  failure.rank = 1;
  failure.sequence = 17;
  failure.expected = 42;
  failure.text = text;
  return failure;
}

void decide_together(World& world, double timeout_s = 20) {
  for (auto& rank : world.ranks) rank->set_verdict_timeout(timeout_s);
}

void a_proposal_waits_for_its_verdict() {
  World world({0, 0, 1});
  decide_together(world);
  std::vector<float> data[3];
  for (auto& part : data) part.assign(1000, 1);
  Failure seen[3];
  std::thread callers[2];
  for (size_t r : {0u, 1u}) {
    callers[r] = std::thread([&, r] {
      seen[r] = failure_of(*world.ranks[r], all_reduce(mesh(static_cast<int>(r), 3), data[r]));
    });
  }
  Communicator& first = *world.ranks[0];
  CHECK(eventually([&] { return first.progress_made().sequence == 1; }));
  CHECK(first.progress_made().waiting_for == std::vector<int>({1, 2}) ||
        first.progress_made().waiting_for == std::vector<int>({2}));
  first.abort("for a reason");
  std::optional<Failure> proposal;
  CHECK(eventually([&] { return (proposal = first.take_proposal()).has_value(); }));
  CHECK(proposal->kind == FailureKind::aborted && proposal->text == "for a reason");
  CHECK(!first.take_proposal());
  CHECK(!first.failure());
  CHECK(first.progress_made().sequence == 1);  // what it stopped
  // A call that comes meanwhile shares the fate of the others.
  std::vector<std::byte> bytes(8);
  RequestPtr late = transfer(RequestKind::recv, bytes, 1, 7);
  first.start(late);
  CHECK(!first.wait(late, in(milliseconds(20)), no_interrupt));

  first.conclude(verdict("the whole story"));
  first.conclude(verdict("another one, too late"));
  for (std::thread& caller : callers) caller.join();
  seen[2] = failure_of(*world.ranks[2], all_reduce(mesh(2, 3), data[2]));
  for (const Failure& failure : seen) {
    CHECK(failure.kind == FailureKind::peer_lost && failure.settled);
    CHECK(failure.rank == 1 && failure.sequence == 17 && failure.expected == 42);
    CHECK(failure.text == "the whole story");
  }
  CHECK(late->is_done() && late->failure.text == "the whole story");
}

// A rank that had called was said not to have, when its thread had no core for 20 ms.
void a_driver_that_does_not_answer_has_arrived_all_the_same() {
  World world({0, 0});
  Communicator& mine = *world.ranks[0];
  std::vector<float> data[2] = {std::vector<float>(10), std::vector<float>(10)};
  std::atomic<bool> is_held = false, goes_on = false;
  std::thread caller([&] {
    mine.run(all_reduce(mesh(0, 2), data[0]), [&] {
      is_held = true;
      while (!goes_on) std::this_thread::yield();
    });
  });
  CHECK(eventually([&] { return is_held.load(); }));
  CHECK(mine.progress_made().submitted == 1);
  goes_on = true;
  world.ranks[1]->run(all_reduce(mesh(1, 2), data[1]), no_interrupt);
  caller.join();
}

void without_a_verdict_the_proposal_stands() {
  World world({0, 1});
  decide_together(world, 0.2);
  std::vector<float> data(10);
  Deadline begin = Clock::now();
  Failure failure = failure_of(*world.ranks[0], all_reduce(mesh(0, 2), data, milliseconds(100)));
  CHECK(Clock::now() - begin >= milliseconds(300));
  CHECK(failure.kind == FailureKind::timed_out && !failure.settled && failure.sequence == 1);
  // The peer hears of it as of something that still is to be decided, and decides in the end.
  failure = failure_of(*world.ranks[1], all_reduce(mesh(1, 2), data));
  CHECK(failure.kind == FailureKind::timed_out && failure.reporter == 0);
}

void a_communicator_with_no_call_under_way_hears_by_looking() {
  World world({0, 1, 0});
  decide_together(world);
  world.ranks[1]->close();
  CHECK(eventually([&] {
    world.ranks[0]->look();
    return !world.ranks[0]->gone_ranks().empty();
  }));
  GoneRank gone = world.ranks[0]->gone_ranks().at(0);
  CHECK(gone.rank == 1 && gone.left && gone.last_sequence == 0);
  CHECK(!world.ranks[0]->take_proposal());  // to leave is no failure as long as nobody waits
  world.ranks[0]->conclude(verdict("over"));
  CHECK(eventually([&] {
    world.ranks[2]->look();
    return world.ranks[2]->failure().has_value();
  }));
  CHECK(world.ranks[2]->failure()->text == "over");
}

void nothing_is_written_after_a_proposal() {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    World world(nodes);
    decide_together(world);
    std::vector<float> mine(100'000, 1), theirs(100'000, 2);
    RequestPtr request = all_reduce(mesh(0, 2), mine);
    world.ranks[0]->start(request);
    world.ranks[0]->abort("stop here");
    CHECK(eventually([&] { return world.ranks[0]->take_proposal().has_value(); }));
    std::vector<float> before = mine;
    RequestPtr other = all_reduce(mesh(1, 2), theirs);
    world.ranks[1]->start(other);
    CHECK(!world.ranks[1]->wait(other, in(milliseconds(50)), no_interrupt));
    CHECK(!world.ranks[0]->wait(request, in(milliseconds(50)), no_interrupt));
    CHECK(mine == before);
    world.ranks[1]->conclude(verdict("over"));
    CHECK(eventually([&] { return request->is_done() && other->is_done(); }));
    CHECK(mine == before);
  }
}

void nothing_is_sent_after_a_proposal() {
  World world({0, 1}, size_t{4} << 20);
  decide_together(world);
  std::vector<float> mine(4'000'000, 1), theirs(4'000'000, 2);  // more than sockets hold
  RequestPtr request = all_reduce(mesh(0, 2), mine), other = all_reduce(mesh(1, 2), theirs);
  world.ranks[0]->start(request);
  world.ranks[0]->abort("stop here");
  CHECK(eventually([&] { return world.ranks[0]->take_proposal().has_value(); }));
  uint64_t before = world.ranks[0]->statistics().tcp.bytes.value();
  world.ranks[1]->start(other);  // reads what there is
  for (Deadline until = in(milliseconds(500)); Clock::now() < until; std::this_thread::yield()) {
    world.ranks[0]->look();
  }
  CHECK(world.ranks[0]->statistics().tcp.bytes.value() == before);
  world.ranks[0]->conclude(verdict("over"));
  CHECK(eventually([&] { return request->is_done() && other->is_done(); }));
}

void an_interrupt_does_not_wait_for_the_verdict() {
  World world({0, 0});
  decide_together(world);
  struct Signal {};
  std::vector<float> data(10);
  Deadline begin = Clock::now();
  bool thrown = false;
  try {
    world.ranks[0]->run(all_reduce(mesh(0, 2), data), [] { throw Signal(); });
  } catch (const Signal&) {
    thrown = true;
  }
  CHECK(thrown && Clock::now() - begin < seconds(5));
  CHECK(world.ranks[0]->take_proposal()->kind == FailureKind::aborted);
}

void closing_does_not_wait_for_the_verdict() {
  World world({0, 1});
  decide_together(world);
  std::vector<float> data(10);
  RequestPtr request = all_reduce(mesh(0, 2), data);
  world.ranks[0]->start(request);
  world.ranks[0]->abort("first");
  CHECK(eventually([&] { return world.ranks[0]->take_proposal().has_value(); }));
  world.ranks[0]->close();
  CHECK(request->is_done() && request->failure.text == "first");
}

void long_texts_arrive_whole_and_longer_ones_are_cut() {
  auto ends = unix_sockets();
  ControlLink sender(1, {stream_on(ends[0])}), receiver(0, {stream_on(ends[1])});
  Failure failure = verdict("");
  failure.settled = true;
  for (size_t length : {size_t{0}, size_t{1}, most_text_bytes, most_text_bytes + 1}) {
    failure.text.assign(length, 'x');
    sender.report(failure);
    std::optional<Failure> heard = receiver.receive();
    CHECK(heard && heard->settled && heard->sequence == 17);
    CHECK(heard->text == failure.text.substr(0, most_text_bytes));
  }
  // Not in the middle of a character.
  std::string fitting(most_text_bytes - 1, 'x');
  failure.text = fitting + "\u00e4";
  sender.report(failure);
  std::optional<Failure> heard = receiver.receive();
  CHECK(heard && heard->text == fitting);
}

}  // namespace
}  // namespace hccl::test

int main(int argc, char** argv) {
  using namespace hccl::test;
  const Test tests[] = {
      {"a_proposal_waits_for_its_verdict", a_proposal_waits_for_its_verdict},
      {"a_driver_that_does_not_answer_has_arrived_all_the_same",
       a_driver_that_does_not_answer_has_arrived_all_the_same},
      {"without_a_verdict_the_proposal_stands", without_a_verdict_the_proposal_stands},
      {"a_communicator_with_no_call_under_way_hears_by_looking",
       a_communicator_with_no_call_under_way_hears_by_looking},
      {"nothing_is_written_after_a_proposal", nothing_is_written_after_a_proposal},
      {"nothing_is_sent_after_a_proposal", nothing_is_sent_after_a_proposal},
      {"an_interrupt_does_not_wait_for_the_verdict", an_interrupt_does_not_wait_for_the_verdict},
      {"closing_does_not_wait_for_the_verdict", closing_does_not_wait_for_the_verdict},
      {"long_texts_arrive_whole_and_longer_ones_are_cut",
       long_texts_arrive_whole_and_longer_ones_are_cut},
  };
  run_tests(tests, argc > 1 ? argv[1] : nullptr);
}
