// How threads come to drive, hand the driving on, and ask the driver for something.
#include <algorithm>

#include "engine/driver/driver.h"
#include "progress/progress_thread.h"

namespace hccl {

namespace {

using std::chrono::milliseconds;

// How long the driver may take to say how far it has got.
constexpr auto answer_time = milliseconds(20);
// How long another thread's turn may take.
constexpr auto turn_time = milliseconds(20);
constexpr double longest_delivery_s = 2;

}  // namespace

Driver::Driver(const DriverOptions& options, std::shared_ptr<Segment> segment,
               std::shared_ptr<ProgressThread> progress)
    : rank_(options.rank),
      path_timeout_s_(options.path_timeout_s),
      segment_(std::move(segment)),
      progress_thread_(std::move(progress)),
      doorbell_(new_event()),
      connections_(options.world_size, options.local_ranks, options.path_timeout_s),
      collectives_(options.rank, options.world_size, options.num_channels, options.slot_bytes,
                   recorder_, statistics_),
      point_to_point_(std::make_unique<PointToPoint>(options.rank, options.world_size,
                                                     options.slot_bytes, recorder_, statistics_)) {
  connections_.watch_bell(doorbell_.get());
}

void Driver::set_may_spin(bool may_spin) {
  may_spin_ = may_spin;
  collectives_.set_may_spin(may_spin);
}

Caller Driver::caller() const {
  return submissions_.caller(driver_.load(std::memory_order_relaxed) != std::thread::id());
}

// ---------------------------------------------------------------- callers

// True if the caller drives now.
bool Driver::submit(const RequestPtr& request) {
  if (failures_.has_ended()) throw CommunicatorFailed(failures_.failure());
  switch (submissions_.submit(request)) {
    case Submissions::Submitted::drives: return true;
    case Submissions::Submitted::queued: wake(); return false;
    case Submissions::Submitted::closed: break;
  }
  throw CommunicatorFailed(std::make_shared<Failure>(observed(Cause::closed, rank_)));
}

void Driver::run(const RequestPtr& request, const Interrupt& interrupt) {
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
    abort(observed(Cause::interrupted, rank_));
    try {
      wait(request, Deadline::max(), [] {});
    } catch (const CommunicatorFailed&) {
    }
    throw;
  }
}

void Driver::start(const RequestPtr& request) {
  progress_thread_->start();
  if (!submit(request)) return;
  // Send at once what can be sent: the peers wait for it while the progress thread wakes up.
  progress_or_fail();
  std::exception_ptr interruption = std::exchange(interruption_, nullptr);
  hand_over();
  if (interruption) std::rethrow_exception(interruption);
}

bool Driver::wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt) {
  struct Wait {
    Driver& driver;
    explicit Wait(Driver& its_driver) : driver(its_driver) { driver.submissions_.begin_wait(); }
    ~Wait() {
      if (driver.submissions_.end_wait()) {
        driver.progress_thread_->kick(driver.shared_from_this());
      }
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

bool Driver::has_calls() const {
  return !collectives_.idle() || point_to_point_->num_pending() > 0 ||
         failures_.phase() == FailureState::Phase::reported || submissions_.has_incoming();
}

// Also bytes of calls that have ended, and peers of which it is open how they end.
bool Driver::has_work() const {
  return has_calls() || !point_to_point_->idle() || connections_.is_unsettled();
}

// Whether a request came in for which no other thread was woken, because this one drove.
bool Driver::has_requests() const { return submissions_.has_incoming() || asked(~ask_close); }

// Ends this thread's driving. What is left goes to a waiter or to the progress thread.
void Driver::hand_over() {
  bool has_rest = has_work();
  submissions_.stop_driving();
  if (asked(~ask_close) && submissions_.try_drive()) {
    progress_or_fail();
    submissions_.stop_driving();
  } else if (has_rest || has_requests()) {
    progress_thread_->kick(shared_from_this());
  }
}

// Wakes waiters if something has finished since the last time.
void Driver::notify_waiters() {
  uint64_t num_finished = statistics_.collectives.value() + point_to_point_->num_finished();
  if (num_finished == num_finished_seen_) return;
  num_finished_seen_ = num_finished;
  submissions_.notify_waiters();
}

void Driver::wake() {
  if (segment_->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
  signal_event(doorbell_);
}

// ---------------------------------------------------------------- asking the driver

// Answers what was asked on this thread, or wakes the one that drives.
void Driver::drive_once() {
  wake();
  if (!submissions_.try_drive()) return;
  progress_or_fail();
  hand_over();
}

void Driver::ask_to_stop(Failure failure, Ask how) {
  std::lock_guard lock(asks_mutex_);
  bool is_first = !asked(ask_stop) || !failure.diagnosis.empty();
  if (is_first) stop_ = std::make_shared<Failure>(std::move(failure));
  asks_.fetch_or(how, std::memory_order_seq_cst);
}

void Driver::abort(Failure failure) {
  if (failures_.has_ended()) return;
  ask_to_stop(std::move(failure), ask_stop);
  drive_once();
}

void Driver::apply_diagnosis() {
  if (FailurePtr diagnosis = failures_.diagnosis()) abort(*diagnosis);
}

void Driver::poll() {
  if (!submissions_.try_drive()) return;
  connections_.handle_events(0);
  check(Clock::now());
  check_leavers();
  // No call may be under way whose thread would see how it ends.
  if (connections_.is_unsettled()) progress_thread_->start();
  hand_over();
}

bool Driver::has_undelivered() {
  for (Deadline until = Clock::now() + turn_time; !submissions_.try_drive();) {
    if (Clock::now() >= until) return false;  // a call drives
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  connections_.handle_events(0);
  check(Clock::now());
  bool owes = !has_calls() && !failures_.has_ended() && connections_.owes();
  hand_over();
  return owes;
}

CallProgress Driver::progress_made() {
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

std::vector<BrokenPath> Driver::take_broken() {
  if (submissions_.try_drive()) {
    connections_.handle_events(0);
    check(Clock::now());
    hand_over();
  }
  std::vector<BrokenPath> broken = connections_.reconnection().take_broken();
  if (failures_.has_ended()) broken.clear();
  return broken;
}

void Driver::replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection) {
  connections_.check_path(path);
  if (submissions_.is_closed() || failures_.has_ended()) return connection->close();
  connections_.reconnection().offer({path, std::move(connection)});
  drive_once();
}

void Driver::close(const std::string& error) {
  if (driver_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    // A signal handler, inside the very call that it ends.
    close_afterwards_ = true;
    return ask_to_stop(observed(Cause::closed, rank_), ask_close);
  }
  for (;;) {
    Submissions::Closing closing = submissions_.try_close();
    if (closing == Submissions::Closing::closed_before) return;
    if (closing == Submissions::Closing::drives) break;
    ask_to_stop(observed(Cause::closed, rank_), ask_close);
    wake();
  }
  if (has_calls()) {
    failures_.end(observed(Cause::closed, rank_));
    stop_moving();
    release_if_ended();
  }
  if (!failures_.has_ended()) {
    double limit_s = std::min(path_timeout_s_, longest_delivery_s);
    connections_.deliver_rest(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(limit_s)));
  }
  connections_.say_goodbye(submissions_.sequence(), error);
  connections_.close();
  collectives_.close();
  point_to_point_.reset();
  local_segments_.clear();
}

// ---------------------------------------------------------------- the progress thread

Driver::Turn Driver::progress_turn() {
  if (!submissions_.try_drive_unawaited()) return Turn::not_mine;
  // Before a sleep it is done anyway, but busy neighbours may keep the thread awake.
  if ((++num_turns_ & 63) == 0) {
    connections_.handle_events(0);
    check(Clock::now());
    check_leavers();
  }
  bool moved = progress_or_fail();
  bool has_rest = has_work();
  submissions_.stop_driving();
  if (!has_rest && !has_requests()) return Turn::not_mine;
  return moved ? Turn::moved : Turn::waiting;
}

bool Driver::prepare_sleep(Sleep& sleep) {
  if (!submissions_.try_drive_unawaited()) return false;
  // Before the flag is up: what rings for this sleep must not be cleared here.
  connections_.handle_events(0);
  check(Clock::now());
  check_leavers();
  announce_sleep(sleep);
  sleep.watch(connections_.epoll_fd());
  sleep.limit(std::min(next_deadline(), Clock::now() + milliseconds(Connections::longest_sleep_ms)));
  bool stay_awake = progress_or_fail(true) || !has_work();
  submissions_.stop_driving();
  return !stay_awake;
}

}  // namespace hccl
