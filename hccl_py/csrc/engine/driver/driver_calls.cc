// How threads come to drive, hand the driving on, and ask the driver for something.
#include <algorithm>

#include "engine/communicator.h"

namespace hccl {

namespace {

using std::chrono::milliseconds;

// How long the driver may take to say how far it has got.
constexpr auto answer_time = milliseconds(20);
// How long another thread's turn may take.
constexpr auto turn_time = milliseconds(20);

}  // namespace

Caller Communicator::caller() const {
  return submissions_.caller(driver_.load(std::memory_order_relaxed) != std::thread::id());
}

// ---------------------------------------------------------------- callers

RequestPtr Communicator::take_request() {
  RequestPtr request = std::exchange(spare_, nullptr);
  return request && request.use_count() == 1 ? request : std::make_shared<Request>();
}

void Communicator::give_back(RequestPtr request) {
  request->plan = nullptr;
  request->call.input.clear();
  request->call.output.clear();
  request->failure = nullptr;
  request->done.store(false, std::memory_order_relaxed);
  spare_ = std::move(request);
}

// True if the caller drives now.
bool Communicator::submit(const RequestPtr& request) {
  if (failures_.has_ended()) throw CommunicatorFailed(failures_.failure());
  switch (submissions_.submit(request)) {
    case Submissions::Submitted::drives: return true;
    case Submissions::Submitted::queued: wake(); return false;
    case Submissions::Submitted::closed: break;
  }
  throw CommunicatorFailed(std::make_shared<Failure>(observed(Cause::closed, options_.rank)));
}

void Communicator::run(const RequestPtr& request, const Interrupt& interrupt) {
  if (submit(request)) {
    drive(request, Deadline::max(), interrupt);
    if (request->failure) throw CommunicatorFailed(request->failure);
    return;
  }
  try {
    wait(request, Deadline::max(), interrupt);
  } catch (const CommunicatorFailed&) {
    throw;
  } catch (...) {
    // The caller takes the buffers along, so the engine must be done with them.
    abort(Cause::interrupted);
    try {
      wait(request, Deadline::max(), [] {});
    } catch (const CommunicatorFailed&) {
    }
    throw;
  }
}

void Communicator::start(const RequestPtr& request) {
  progress_thread_->start();
  if (!submit(request)) return;
  // Send at once what can be sent: the peers wait for it while the progress thread wakes up.
  progress_or_fail();
  std::exception_ptr interruption = std::exchange(interruption_, nullptr);
  hand_over();
  if (interruption) std::rethrow_exception(interruption);
}

bool Communicator::wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt) {
  struct Wait {
    Communicator& owner;
    explicit Wait(Communicator& its_owner) : owner(its_owner) { owner.submissions_.begin_wait(); }
    ~Wait() {
      if (owner.submissions_.end_wait()) owner.kick_progress_thread();
    }
  };
  if (!request->is_done()) {
    Wait wait(*this);
    while (!request->is_done()) {
      switch (submissions_.await(*request, deadline)) {
        case Submissions::Waited::done: break;
        case Submissions::Waited::drives: drive(request, deadline, interrupt); break;
        case Submissions::Waited::time_out: return false;
        case Submissions::Waited::slice_over: interrupt(); break;
      }
    }
  }
  if (request->failure) throw CommunicatorFailed(request->failure);
  return true;
}

bool Communicator::has_calls() const {
  return !collectives_.idle() || point_to_point_.num_pending() > 0 ||
         failures_.phase() == FailureState::Phase::reported || submissions_.has_incoming();
}

// Also bytes of calls that have ended, and peers of which it is open how they end.
bool Communicator::has_work() const {
  return has_calls() || !point_to_point_.idle() || connections_.is_unsettled();
}

// Whether a request came in for which no other thread was woken, because this one drove.
bool Communicator::has_requests() const { return submissions_.has_incoming() || asked(~ask_close); }

// Ends this thread's driving. What is left goes to a waiter or to the progress thread.
void Communicator::hand_over() {
  bool has_rest = has_work();
  submissions_.stop_driving();
  if (asked(~ask_close) && submissions_.try_drive()) {
    progress_or_fail();
    submissions_.stop_driving();
  } else if (has_rest || has_requests()) {
    kick_progress_thread();
  }
}

void Communicator::kick_progress_thread() { progress_thread_->kick(self_.lock()); }

// Wakes waiters if something has finished since the last time.
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

// ---------------------------------------------------------------- asking the driver

// Answers what was asked on this thread, or wakes the one that drives.
void Communicator::drive_once() {
  wake();
  if (!submissions_.try_drive()) return;
  progress_or_fail();
  hand_over();
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
  if (!submissions_.try_drive()) return;
  check_connections();
  // No call may be under way whose thread would see how it ends.
  if (connections_.is_unsettled()) progress_thread_->start();
  hand_over();
}

bool Communicator::has_undelivered() {
  for (Deadline until = Clock::now() + turn_time; !submissions_.try_drive();) {
    if (Clock::now() >= until) return false;  // a call drives
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  check_connections();
  bool owes = !has_calls() && !failures_.has_ended() && connections_.owes();
  hand_over();
  return owes;
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
  answered_.wait_for(lock, answer_time, [&] { return num_answers_ != before || !asked(ask_progress); });
  CallProgress made = progress_made_;
  // A rank that has called has arrived, even if its driver waits for a core.
  made.submitted = submitted;
  return made;
}

std::vector<BrokenPath> Communicator::take_broken() {
  if (submissions_.try_drive()) {
    check_connections();
    hand_over();
  }
  std::vector<BrokenPath> broken = connections_.take_broken();
  if (failures_.has_ended()) broken.clear();
  return broken;
}

void Communicator::replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection) {
  if (submissions_.is_closed() || failures_.has_ended()) return connection->close();
  connections_.offer({path, std::move(connection)});
  drive_once();
}

// ---------------------------------------------------------------- the progress thread

Drivable::Turn Communicator::progress_turn() {
  if (!submissions_.try_drive_unawaited()) return Turn::not_mine;
  // Before a sleep it is done anyway, but busy neighbours may keep the thread awake.
  if ((++num_turns_ & 63) == 0) check_connections();
  bool moved = progress_or_fail();
  bool has_rest = has_work();
  submissions_.stop_driving();
  if (!has_rest && !has_requests()) return Turn::not_mine;
  return moved ? Turn::moved : Turn::waiting;
}

bool Communicator::prepare_sleep(Sleep& sleep) {
  if (!submissions_.try_drive_unawaited()) return false;
  // Before the flag is up: what rings for this sleep must not be cleared here.
  check_connections();
  announce_sleep(sleep);
  sleep.watch(connections_.epoll_fd());
  sleep.limit(std::min(next_deadline(), Clock::now() + milliseconds(Connections::longest_sleep_ms)));
  bool stay_awake = progress_or_fail(true) || !has_work();
  submissions_.stop_driving();
  return !stay_awake;
}

}  // namespace hccl
