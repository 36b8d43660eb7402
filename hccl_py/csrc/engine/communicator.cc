// How threads drive a communicator, pass the driving on, send requests to the driver, and close it.
// connect.cc makes it; driver.cc has the driver's turns.
#include "engine/communicator.h"

#include <algorithm>

namespace hccl {

namespace {

using std::chrono::milliseconds;

// How long the driver may take to report its progress.
constexpr auto answer_time = milliseconds(20);
// How long another thread's turn may take.
constexpr auto turn_time = milliseconds(20);
// How long a rank that closes waits for peers of other nodes to have received everything.
constexpr double longest_delivery_s = 2;

}  // namespace

Caller Communicator::caller() const {
  return submissions_.caller(driver_.load(std::memory_order_relaxed) != std::thread::id());
}

void Communicator::run(const RequestPtr& request, const Interrupt& interrupt) {
  request->in_background = false;
  if (!run_briefly(request)) finish(request, interrupt);
}

void Communicator::run(std::span<const RequestPtr> requests, const Interrupt& interrupt) {
  for (const RequestPtr& request : requests) request->in_background = false;
  finish_all(requests, submit(requests), interrupt);
}

void Communicator::finish(const RequestPtr& request, const Interrupt& interrupt) {
  finish_all({&request, 1}, Driving(*this, Driving::As::caller, drives()), interrupt);
}

void Communicator::finish_all(std::span<const RequestPtr> requests, Driving driving,
                              const Interrupt& interrupt) {
  if (driving) {
    drive(std::move(driving), requests, Deadline::max(), interrupt);
  } else {
    try {
      await_all(requests, interrupt);
    } catch (...) {
      // The caller reuses the buffers, so the engine must be done with them.
      abort(Cause::interrupted);
      await_all(requests, [] {});
      throw;
    }
  }
  for (const RequestPtr& request : requests) {
    if (request->failure) throw CommunicatorFailed(request->failure);
  }
}

// Waits until all have ended, successfully or not.
void Communicator::await_all(std::span<const RequestPtr> requests, const Interrupt& interrupt) {
  for (const RequestPtr& request : requests) {
    try {
      wait(request, Deadline::max(), interrupt);
    } catch (const CommunicatorFailed&) {
    }
  }
}

void Communicator::start(std::span<const RequestPtr> requests) {
  progress_thread_->start();
  for (const RequestPtr& request : requests) request->in_background = true;
  Driving driving = submit(requests, Driving::As::turn);
  if (!driving) return;
  // Sends at once as much as possible: peers wait for it while the progress thread wakes up.
  progress_or_fail();
  if (interruption_) drive(std::move(driving), {}, Deadline::max(), [] {});
}

void Communicator::start_moving(const RequestPtr& request) {
  bool moves = moves_what_it_starts_ && way_to_wait() != Wait::idle;
  if (!moves || request->kind != RequestKind::collective) return start(request);
  progress_thread_->start();
  request->in_background = true;
  if (Driving driving = submit({&request, 1})) drive_while_moving(std::move(driving), *request);
}

bool Communicator::wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt) {
  if (!request->is_done()) {
    Waiting waiting(*this, *request);
    while (!request->is_done()) {
      switch (submissions_.await(*request, deadline)) {
        case Submissions::Waited::done: break;
        case Submissions::Waited::drives:
          drive({*this, Driving::As::caller, true}, {&request, 1}, deadline, interrupt);
          break;
        case Submissions::Waited::time_out: return false;
        case Submissions::Waited::slice_over: interrupt(); break;
      }
    }
  }
  if (request->failure) throw CommunicatorFailed(request->failure);
  return true;
}

bool Communicator::finish_unawaited(Deadline deadline, const Interrupt& interrupt) {
  // A signal handler inside a call, which cannot end before the handler does.
  if (drives()) return true;
  submissions_.refuse();
  Request none;
  Waiting waiting(*this, none);
  has_unawaited_.store(true, std::memory_order_relaxed);
  while (!failures_.has_ended() && has_unawaited_.load(std::memory_order_relaxed)) {
    switch (submissions_.await(none, deadline)) {
      case Submissions::Waited::done: break;
      case Submissions::Waited::drives: {
        drive({*this, Driving::As::caller, true}, {}, deadline, interrupt);
        return Clock::now() < deadline;
      }
      case Submissions::Waited::time_out: return false;
      case Submissions::Waited::slice_over:  // a thread drives its own call
        interrupt();
        asks_.fetch_or(ask_unawaited, std::memory_order_seq_cst);
        wake();
    }
  }
  return true;
}

// Whether an unawaited call is running, or its failure is not diagnosed yet.
bool Communicator::has_unawaited() const {
  auto unawaited = [](const RequestPtr& request) { return request->is_unawaited(); };
  return failures_.phase() == FailureState::Phase::reported || collectives_.has_unawaited() ||
         point_to_point_.has_unawaited() || submissions_.has_unawaited() ||
         std::any_of(accepted_.begin(), accepted_.end(), unawaited);
}

void Communicator::kick_progress_thread() { progress_thread_->kick(self_.lock()); }

// Wakes waiters if a request has ended since the last call.
void Communicator::notify_waiters() {
  uint64_t num_finished = statistics_.collectives.value() + point_to_point_.num_finished();
  if (num_finished == num_finished_seen_) return;
  num_finished_seen_ = num_finished;
  submissions_.notify_waiters();
}

void Communicator::wake() {
  if (segment_->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
  signal_event(doorbell_);
}

// Answers requests on this thread, or wakes the driving one.
void Communicator::drive_once() {
  wake();
  if (Driving turn = try_turn()) progress_or_fail();
}

void Communicator::ask_to_stop(Failure failure, Ask how) {
  std::lock_guard lock(asks_mutex_);
  bool is_first = !asked(ask_stop) || !failure.diagnosis.empty();
  if (is_first) stop_ = std::make_shared<Failure>(std::move(failure));
  asks_.fetch_or(how, std::memory_order_seq_cst);
}

void Communicator::stop(Failure failure) {
  if (failures_.has_ended()) return;
  ask_to_stop(std::move(failure), ask_stop);
  drive_once();
}

void Communicator::abort(Cause cause, std::string reason) {
  Failure failure = observed(cause, options_.rank);
  failure.reason = std::move(reason);
  stop(std::move(failure));
}

void Communicator::apply_diagnosis() {
  if (FailurePtr diagnosis = failures_.diagnosis()) stop(*diagnosis);
}

void Communicator::poll() {
  Driving turn = try_turn();
  if (!turn) return;
  check_connections();
  // No call may be running whose thread would observe its end.
  if (connections_.is_unsettled()) progress_thread_->start();
}

bool Communicator::has_undelivered() {
  for (Deadline until = Clock::now() + turn_time; Clock::now() < until;) {
    if (Driving turn = try_turn()) {
      check_connections();
      return !has_calls() && !failures_.has_ended() && connections_.owes();
    }
    if (driver_.load(std::memory_order_relaxed) != std::thread::id()) {
      return false;  // a call drives
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;  // another thread's turn, perhaps without a core
}

CallProgress Communicator::progress_made() {
  uint64_t before;
  {
    std::lock_guard lock(asks_mutex_);
    before = num_answers_;
  }
  if (!failures_.has_report() && !failures_.has_ended() && !submissions_.is_closed()) {
    asks_.fetch_or(ask_progress, std::memory_order_seq_cst);
    drive_once();
  }
  uint64_t submitted = submissions_.sequence();
  std::unique_lock lock(asks_mutex_);
  answered_.wait_for(lock, answer_time,
                     [&] { return num_answers_ != before || !asked(ask_progress); });
  CallProgress made = progress_made_;
  // A rank that has called has arrived, even if its driver waits for a core.
  made.submitted = submitted;
  return made;
}

std::vector<BrokenPath> Communicator::take_broken() {
  if (Driving turn = try_turn()) check_connections();
  std::vector<BrokenPath> broken = connections_.take_broken();
  // A failed communicator still learns of ended ranks by its control links, for shrink().
  if (failures_.has_ended()) std::erase_if(broken, [](auto& path) { return path.index != 0; });
  return broken;
}

void Communicator::note_refusal(int peer) {
  if (submissions_.is_closed()) return;
  connections_.note_refusal(peer);
  drive_once();
}

void Communicator::note_unreachable(int peer, const std::string& why) {
  if (submissions_.is_closed()) return;
  connections_.note_unreachable(peer, why);
  drive_once();
}

void Communicator::replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection) {
  if (submissions_.is_closed()) return connection->close();
  connections_.offer(path, std::move(connection));
  drive_once();
}

Drivable::Turn Communicator::progress_turn() {
  Driving turn = turn_for_unawaited();
  if (!turn) return Turn::not_mine;
  // It is also done before a sleep, but busy neighbours may keep the thread awake.
  if ((++num_turns_ & 63) == 0) check_connections();
  bool moved = progress_or_fail();
  bool only_serves = point_to_point_.serves() && point_to_point_.idle() && !has_calls();
  if (!turn.stop()) return Turn::not_mine;
  return moved ? Turn::moved : only_serves ? Turn::quiet : Turn::waiting;
}

bool Communicator::prepare_sleep(Sleep& sleep) {
  Driving turn = turn_for_unawaited();
  if (!turn) return false;
  // Before the flag is raised: wake-ups for this sleep must not be cleared here.
  check_connections();
  announce_sleep(sleep);
  sleep.watch(connections_.epoll_fd());
  sleep.limit(
      std::min(next_deadline(), Clock::now() + milliseconds(Connections::longest_sleep_ms)));
  bool stay_awake = progress_or_fail(true) || !has_work();
  turn.stop();
  return !stay_awake;
}

void Communicator::close(const std::string& error, const Interrupt& interrupt, bool goes_on) {
  if (drives()) {
    // A signal handler inside the call that it ends.
    close_afterwards_ = true;
    return ask_to_stop(observed(Cause::closed, options_.rank), ask_close);
  }
  for (;;) {
    Submissions::Closing closing = submissions_.try_close();
    if (closing == Submissions::Closing::closed_before) return;
    if (closing == Submissions::Closing::drives) break;  // for ever: no thread gets the right again
    ask_to_stop(observed(Cause::closed, options_.rank), ask_close);
    wake();
  }
  if (has_calls()) {
    failures_.end(observed(Cause::closed, options_.rank));
    stop_moving();
  }
  // No signal shortens this: the memory is the callers' next.
  for (; !held_.empty(); end_held()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  std::exception_ptr interruption;
  try {
    if (!failures_.has_ended()) deliver_rest(interrupt);
  } catch (...) {
    interruption = std::current_exception();
  }
  connections_.leave(submissions_.sequence(), error, goes_on);
  collectives_.close();
  point_to_point_.close();
  cores_.clear();
  if (interruption) std::rethrow_exception(interruption);
}

// Waits, for a limited time, until the kernels of peers on other nodes have all sent data: closing
// a socket while the peer still writes to it discards data in flight.
void Communicator::deliver_rest(const Interrupt& interrupt) {
  double limit_s = std::min(options_.path_timeout_s, longest_delivery_s);
  Deadline until = Clock::now() + duration_of(limit_s);
  Deadline next_signals = Clock::now() + signal_period;
  while (!connections_.deliver() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (Clock::now() < next_signals) continue;
    interrupt();
    next_signals = Clock::now() + signal_period;
  }
}

}  // namespace hccl
