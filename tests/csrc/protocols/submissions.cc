// The queue of submitted calls: several threads of a rank, one of which drives.
#include "engine/driver/submissions.h"

#include "cases.h"

namespace hccl::check {

namespace {

struct Process {
  Submissions submissions;
  int event = new_event();
  std::array<RequestPtr, 2> requests{std::make_shared<Request>(), std::make_shared<Request>()};
  std::atomic<uint32_t> message{0};  // of a peer; the first call ends with it
  bool is_accepted = false;          // the first call, by a driver
};

Process* process;

void ring() {
  if (segments[0]->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
  signal_event(Descriptor(process->event));
}

// A turn of the driver.
Turned turn(const Request& own) {
  Process& mine = *process;
  if (own.is_done()) return Turned::done;
  std::vector<RequestPtr> ended;
  bool moves = mine.submissions.has_incoming();
  if (moves) mine.submissions.take(ended);
  mine.is_accepted |= std::erase(ended, mine.requests[0]) > 0;
  if (mine.is_accepted && mine.message.load(std::memory_order_seq_cst) != 0) {
    ended.push_back(mine.requests[0]);
  }
  for (const RequestPtr& one : ended) {
    one->num_bytes = 1;  // a result
    one->done.store(true, std::memory_order_release);
  }
  if (!ended.empty()) mine.submissions.notify_waiters();
  return moves || !ended.empty() ? Turned::moved : Turned::waiting;
}

void drive_until_done(const Request& own, Way way) {
  drive(0, process->event, way, [&] { return turn(own); }, [] { return false; });
  process->submissions.stop_driving();
}

// As Communicator::submit() and wait(): who drives at once is no waiter.
void call(const RequestPtr& queued, Way way) {
  const Request& request = *queued;
  Submissions& submissions = process->submissions;
  if (submissions.submit({&queued, 1}) == Submissions::Submitted::drives) {
    drive_until_done(request, way);
  } else {
    ring();
  }
  submissions.begin_wait();
  Submissions::Waited waited;
  while ((waited = submissions.await(request, Deadline::max())) != Submissions::Waited::done) {
    if (waited == Submissions::Waited::drives) drive_until_done(request, way);
  }
  submissions.end_wait();
  require(request.num_bytes == 1, "a call without its result");
}

// The first call drives on after the second one has ended, until its message comes.
Case calls(const std::string& name, Way way) {
  Program program;
  program.begin = [=] {
    process = new Process;
    share(process, sizeof *process);
    for (const RequestPtr& one : process->requests) share(one.get(), sizeof *one);
  };
  program.threads = {
      [=] { call(process->requests[0], way); },
      [=] {
        call(process->requests[1], way);
        process->message.store(1, std::memory_order_seq_cst);
        ring();
      },
  };
  return {name, program};
}

}  // namespace

std::vector<Case> submission_cases(int) {
  return {calls("calls of two threads, the driver spins", Way::spins),
          calls("calls of two threads, the driver sleeps", Way::sleeps)};
}

}  // namespace hccl::check
