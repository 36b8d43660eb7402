// How a failure becomes one: reported by the rank that observes it, diagnosed elsewhere.
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <system_error>

#include "fuzz/feed.h"
#include "ranks.h"
#include "wire.h"

namespace hccl::test {
namespace {

void diagnose(Communicator& rank, const char* diagnosis = "the whole story") {
  rank.failures().adopt(Cause::died, diagnosis);
  rank.apply_diagnosis();
}

void await_diagnoses(World& world, double timeout_s = 20) {
  for (auto& rank : world.ranks) rank->failures().set_diagnosis_timeout(timeout_s);
}

HCCL_TEST(a_report_waits_for_its_diagnosis) {
  World world({0, 0, 1});
  await_diagnoses(world);
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
  first.abort(Cause::aborted, "for a reason");
  FailurePtr report;
  CHECK(eventually([&] { return (report = first.failures().take_report()) != nullptr; }));
  CHECK(report->cause == Cause::aborted && report->reason == "for a reason");
  CHECK(report->rank == 0);
  CHECK(!first.failures().take_report());
  CHECK(!first.failures().failure());
  CHECK(first.progress_made().sequence == 1);  // what it stopped
  // A call that comes meanwhile shares the fate of the others.
  std::vector<std::byte> bytes(8);
  RequestPtr late = transfer(RequestKind::recv, bytes, 1, 7);
  first.start(late);
  CHECK(!first.wait(late, in(milliseconds(20)), no_interrupt));

  diagnose(first);
  diagnose(first, "another one, too late");
  diagnose(*world.ranks[1]);  // which observed nothing itself
  diagnose(*world.ranks[2]);
  for (std::thread& caller : callers) caller.join();
  seen[2] = failure_of(*world.ranks[2], all_reduce(mesh(2, 3), data[2]));
  for (const Failure& failure : seen) {
    CHECK(failure.cause == Cause::died && failure.diagnosis == "the whole story");
  }
  CHECK(late->is_done() && late->failure->diagnosis == "the whole story");
}

HCCL_TEST(without_a_diagnosis_the_report_stands) {
  World world({0, 1});
  await_diagnoses(world, 0.2);
  std::vector<float> data(10);
  Deadline begin = Clock::now();
  Failure failure = failure_of(*world.ranks[0], all_reduce(mesh(0, 2), data, milliseconds(100)));
  CHECK(Clock::now() - begin >= milliseconds(300));
  CHECK(failure.cause == Cause::timed_out && failure.diagnosis.empty() && failure.sequence == 1);
  CHECK(failure.waiting_for == std::vector<int>{1} && failure.stage.num_steps > 0);
}

HCCL_TEST(a_communicator_with_no_call_under_way_polls) {
  World world({0, 1, 0});
  await_diagnoses(world);
  world.ranks[1]->close();
  CHECK(eventually([&] {
    world.ranks[0]->poll();
    return !world.ranks[0]->connections().ended_peers().empty();
  }));
  Failure ended = world.ranks[0]->connections().ended_peers().at(0);
  CHECK(ended.rank == 1 && ended.cause == Cause::left && ended.last_sequence == 0);
  CHECK(
      !world.ranks[0]->failures().take_report());  // to leave is no failure as long as nobody waits
  diagnose(*world.ranks[0]);
  CHECK(world.ranks[0]->failures().failure()->diagnosis == "the whole story");
}

HCCL_TEST(a_thread_that_finds_no_memory_lets_others_drive) {
  World world({0, 1});
  await_diagnoses(world, 0.1);
  CHECK(shutdown(world.controls[0], SHUT_RDWR) == 0);
  pthread_attr_t before, huge;  // of new threads: the progress thread gets no stack
  CHECK(pthread_getattr_default_np(&before) == 0 && pthread_attr_init(&huge) == 0);
  CHECK(pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);
  CHECK(pthread_setattr_default_np(&huge) == 0);
  CHECK(throws<std::system_error>([&] { world.ranks[0]->poll(); }));
  CHECK(pthread_setattr_default_np(&before) == 0);
  std::vector<float> data(10);
  RequestPtr request = all_reduce(mesh(0, 2), data, milliseconds(100));
  CHECK(cause_of(*world.ranks[0], request) == Cause::timed_out);  // which a driver must see
}

HCCL_TEST(nothing_is_written_after_a_report) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    World world(nodes);
    await_diagnoses(world);
    std::vector<float> mine(100'000, 1), theirs(100'000, 2);
    RequestPtr request = all_reduce(mesh(0, 2), mine);
    world.ranks[0]->start(request);
    world.ranks[0]->abort(Cause::aborted, "stop here");
    CHECK(eventually([&] { return world.ranks[0]->failures().take_report() != nullptr; }));
    std::vector<float> before = mine;
    RequestPtr other = all_reduce(mesh(1, 2), theirs);
    world.ranks[1]->start(other);
    CHECK(!world.ranks[1]->wait(other, in(milliseconds(50)), no_interrupt));
    CHECK(!world.ranks[0]->wait(request, in(milliseconds(50)), no_interrupt));
    CHECK(mine == before);
    for (auto& rank : world.ranks) diagnose(*rank);
    CHECK(eventually([&] { return request->is_done() && other->is_done(); }));
    CHECK(mine == before);
  }
}

HCCL_TEST(an_interrupt_does_not_wait_for_the_diagnosis) {
  World world({0, 0});
  await_diagnoses(world);
  struct Signal {};
  std::vector<float> data(10);
  Deadline begin = Clock::now();
  CHECK(throws<Signal>(
      [&] { world.ranks[0]->run(all_reduce(mesh(0, 2), data), [] { throw Signal(); }); }));
  CHECK(Clock::now() - begin < seconds(5));
  CHECK(world.ranks[0]->failures().take_report()->cause == Cause::interrupted);
}

// A rank whose only peer sends nothing, and may write into the memory of its calls.
struct WrittenRank {
  std::array<int, 2> control = unix_sockets();
  Descriptor their_control{control[1]};
  std::shared_ptr<Communicator> rank;
  fuzz::PuppetLane* lane = nullptr;  // of transfers
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000);
  RequestPtr recv = transfer(RequestKind::recv, bytes, 1, 7);

  explicit WrittenRank(const std::shared_ptr<ProgressThread>& progress) {
    rank = Communicator::create({.world_size = 2, .local_ranks = {0}, .arena = nullptr}, progress);
    std::vector<std::unique_ptr<Lane>> lanes;
    for (int i = 0; i < 3; ++i) {
      lanes.emplace_back(lane = new fuzz::PuppetLane(1, 4096, rank->statistics()));
    }
    lane->is_written = true;
    rank->add_peer(1, std::move(lanes), {stream_on(control[0])});
  }
};

// Whether calls that failed at `begin` no longer wait for a peer that writes.
bool is_over(Deadline begin) { return Clock::now() - begin >= seconds(1); }

HCCL_TEST(a_peer_that_never_stops_to_write_holds_up_a_failed_call_alone_and_for_a_second) {
  World other({0, 0});
  WrittenRank written(other.progress), closed(other.progress);
  for (WrittenRank* each : {&written, &closed}) each->rank->start(each->recv);
  Deadline begin = Clock::now();
  written.rank->abort(Cause::aborted, "stop here");
  CHECK(!written.recv->is_done() || is_over(begin));
  // The progress thread looks after it, and drives the calls of another communicator too.
  std::vector<float> data[2] = {std::vector<float>(1000, 1), std::vector<float>(1000, 2)};
  RequestPtr calls[2];
  for (size_t r : {0u, 1u}) {
    calls[r] = all_reduce(mesh(static_cast<int>(r), 2), data[r]);
    other.ranks[r]->start(calls[r]);
  }
  CHECK(eventually([&] { return calls[0]->is_done() && calls[1]->is_done(); }));
  CHECK(data[0] == std::vector<float>(1000, 3) && !calls[0]->failure);
  CHECK(eventually([&] { return written.recv->is_done(); }));
  CHECK(is_over(begin) && written.recv->failure->cause == Cause::aborted);
  begin = Clock::now();
  closed.rank->close();
  CHECK(is_over(begin) && closed.recv->failure->cause == Cause::closed);
}

// An interrupted caller takes its memory along.
HCCL_TEST(an_interrupt_is_raised_when_no_peer_writes_any_more) {
  WrittenRank written(std::make_shared<ProgressThread>());
  written.rank->failures().set_diagnosis_timeout(20);
  int num_signals = 0;
  Deadline begin = Clock::now();
  CHECK(throws<int>([&] {
    written.rank->run(written.recv, [&] {
      if (++num_signals == 3) written.lane->is_written = false;
      throw num_signals;
    });
  }));
  CHECK((num_signals == 3 || is_over(begin)) && !written.recv->is_done());
  written.rank->close();
  CHECK(written.recv->failure->cause == Cause::interrupted);
}

// The kernel of this host tells how the process at the other end of a Unix socket ended.
HCCL_TEST(a_peer_process_says_how_it_ended) {
  for (int signal : {0, SIGKILL}) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      if (signal != 0) raise(signal);
      _exit(3);
    }
    auto process = open_process(child);
    CHECK(process != nullptr);
    std::optional<ProcessEnd> end;
    CHECK(eventually([&] { return (end = end_of_process(child, *process)).has_value(); }));
    CHECK(waitpid(child, nullptr, 0) == child);
    if (signal != 0) CHECK(end->signal == SIGKILL && !end->exit_code);
    if (signal == 0) CHECK(end->exit_code == 3 && !end->signal);
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

// Its parent reaps it at any moment, between the open and the read of its stat too.
HCCL_TEST(a_peer_process_may_be_reaped_meanwhile) {
  for (int round = 0; round < 2000; ++round) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(3);
    auto process = open_process(child);
    std::optional<ProcessEnd> end;
    CHECK(eventually([&] { return (end = end_of_process(child, *process)).has_value(); }));
    std::atomic<bool> begun{false};
    std::thread parent([&] {
      while (!begun.load()) {
      }
      for (std::atomic<int> delay{round * 10}; delay.load() > 0; --delay) {
      }
      CHECK(waitpid(child, nullptr, 0) == child);
    });
    begun.store(true);
    end = end_of_process(child, *process);
    parent.join();
    CHECK(!end->exit_code || end->exit_code == 3);
    CHECK(!end->signal);
  }
}

}  // namespace
}  // namespace hccl::test
