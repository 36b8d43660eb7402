// The driving thread's turns: progress, checks, sleep and failure. communicator.cc has how threads
// get to drive.
#include "engine/communicator.h"

#include <algorithm>

namespace hccl {

namespace {

// Without a core of its own, every yield lets another rank run; after these the peer is asleep
// anyway.
constexpr int num_yields = 200;

// Turns without progress, some microseconds: a peer in its call answers sooner. Releasing and
// retaking Python's lock costs a tenth of a small call between two ranks.
constexpr int brief_turns = 64;

// How long failed calls wait for peers that write into their memory: a peer may have died or been
// stopped while writing. How often the driver checks: a peer that has written may not ring.
constexpr auto longest_write = std::chrono::seconds(1);
constexpr auto write_period = std::chrono::milliseconds(1);

// Limits of start_moving(): a single wait for peers, the waits beyond the moving time (many times
// the usual differences between training ranks), and the total.
constexpr auto longest_wait = std::chrono::microseconds(300);
constexpr auto longest_start = std::chrono::milliseconds(10);

}  // namespace

RequestPtr Communicator::take_request() {
  RequestPtr request = std::exchange(spare_, nullptr);
  return request && request.use_count() == 1 ? request : std::make_shared<Request>();
}

void Communicator::give_back(RequestPtr request) {
  request->call.input.clear();
  request->call.output.clear();
  request->window = nullptr;
  request->failure = nullptr;
  request->done.store(false, std::memory_order_relaxed);
  spare_ = std::move(request);
}

Communicator::Driving Communicator::submit(std::span<const RequestPtr> requests, Driving::As as) {
  if (failures_.has_ended()) throw CommunicatorFailed(failures_.failure());
  switch (submissions_.submit(requests)) {
    case Submissions::Submitted::drives: return {*this, as, true};
    case Submissions::Submitted::queued: wake(); return {*this, as, false};
    case Submissions::Submitted::closed: break;
  }
  throw CommunicatorFailed(std::make_shared<Failure>(observed(Cause::closed, options_.rank)));
}

bool Communicator::has_calls() const {
  return !collectives_.idle() || point_to_point_.num_pending() > 0 ||
         failures_.phase() == FailureState::Phase::reported || !held_.empty() ||
         submissions_.has_incoming();
}

// Also bytes of ended calls, and peers whose end is not decided yet.
bool Communicator::has_work() const {
  return has_calls() || !point_to_point_.idle() || point_to_point_.serves() ||
         connections_.is_unsettled();
}

bool Communicator::stop_driving() {
  bool has_rest = has_work();
  submissions_.stop_driving();
  return has_rest || submissions_.has_incoming() || is_asked();
}

void Communicator::hand_over() {
  bool close_now = false;
  if (drives()) {
    close_now = std::exchange(close_afterwards_, false);
    note_driver(std::thread::id());
  }
  bool has_rest = stop_driving();
  // The progress thread may not run; a lane's first message waits for the connection.
  while (is_asked() && submissions_.try_drive()) {
    progress_or_fail();
    has_rest = stop_driving();
  }
  if (has_rest) kick_progress_thread();
  if (close_now) close();
}

bool Communicator::run_briefly(const RequestPtr& request) {
  // The queue costs a tenth of a small call: a lock, and atomic counts of references.
  bool is_collective = request->kind == RequestKind::collective;
  bool is_first = is_collective && !failures_.has_ended() && submissions_.submit_first(*request);
  Driving driving = is_first ? Driving(*this, Driving::As::caller, true) : submit({&request, 1});
  if (!driving) return false;
  bool alone = collectives_.idle() && point_to_point_.idle();  // other work may be long
  if (is_first) accept(request);
  for (int turns = !alone ? 0 : spins() ? brief_turns : 1; turns > 0; --turns) {
    progress_or_fail();
    if (interruption_) break;
    if (request->is_done()) {
      spins_.succeed();
      if (request->failure) throw CommunicatorFailed(request->failure);
      return true;
    }
    pause_cpu();
  }
  driving.keep();  // finish() goes on
  return false;
}

// Drives until all requests are done or the deadline has passed. Without requests: until none is
// left that no thread waits for. What a lane's own code or `interrupt` raised is the caller's, once
// no peer writes into the memory that the caller takes along.
void Communicator::drive([[maybe_unused]] Driving driving, std::span<const RequestPtr> requests,
                         Deadline deadline, const Interrupt& interrupt) {
  Wait way = way_to_wait();
  Idle idle(spins() ? &spins_ : nullptr, way == Wait::idle ? 0 : num_yields);
  shorten_slice();
  int num_moves = 0;
  Deadline next_signals{};  // checked with the first read of the clock: a call that ends at once
                            // reads none
  auto first_open = requests.begin();
  for (;;) {
    if (interruption_ && !is_written()) {
      std::rethrow_exception(std::exchange(interruption_, nullptr));
    }
    while (first_open != requests.end() && (*first_open)->is_done()) ++first_open;
    bool all_done = first_open == requests.end() && (!requests.empty() || !has_unawaited());
    if (all_done && !interruption_) return;
    notify_waiters();
    bool moved = progress_or_fail();
    if (!moved && idle.begins() && cores_.settle()) idle.yield_instead();
    bool signalled = false;
    if (moved) {
      idle.reset();
      if ((++num_moves & 255) != 0) continue;
      connections_.handle_events(0);  // progress does not show the state of the rest
    } else if (idle.turn()) {
      if (!idle.look_at_clock()) continue;
    } else {
      // To spin is a sleep without length, then another wait: it sees events of connections.
      signalled = sleep(way == Wait::spin ? Deadline{} : deadline);
      if (way == Wait::spin) idle.spin_again();
    }
    Deadline now = Clock::now();
    if (next_signals == Deadline{}) next_signals = now + signal_period;
    check(now);
    if (signalled || now >= next_signals) {
      ask_signals(interrupt);
      next_signals = now + signal_period;
    }
    if (now >= deadline && !interruption_) return;
  }
}

// Drives until the request is done, or this thread waits more than it moves: a call that is slow
// because of the wire continues in the background.
void Communicator::drive_while_moving(Driving driving, const Request& request) {
  bool alone = collectives_.idle() && point_to_point_.idle();  // other work may be long
  bool is_patient = !spins_.must_sleep() && patience_.may_spin();
  auto patience = is_patient ? longest_wait : Clock::duration{};
  Clock::duration wait{}, all_waits{};
  for (Deadline begin = Clock::now(), last = begin;;) {
    bool moved = progress_or_fail();
    if (interruption_) return drive(std::move(driving), {}, Deadline::max(), [] {});
    notify_waiters();
    if (request.is_done()) return patience_.succeed();
    if (!alone) return;
    Deadline now = Clock::now();
    if (moved) {
      wait = {};
    } else {
      if (wait == Clock::duration{} && cores_.settle()) return;  // the peer needs this core
      wait += now - last;
      all_waits += now - last;
      pause_cpu();
    }
    last = now;
    if (wait > longest_spin) spins_.lose_core();
    bool in_vain = wait > patience || 2 * all_waits > now - begin + patience;
    if (in_vain && is_patient) patience_.fail();
    if (in_vain || now - begin > longest_start) return;
  }
}

// Lets the caller interrupt the wait. It may cost milliseconds, because it needs Python's lock.
void Communicator::ask_signals(const Interrupt& interrupt) {
  try {
    interrupt();
  } catch (...) {
    fail(observed(Cause::interrupted, options_.rank));
    interruption_ = std::current_exception();
  }
}

bool Communicator::progress(bool thoroughly) {
  bool moved = submissions_.has_incoming();
  if (moved) accept();
  if (connections_.has_offers()) {
    connections_.use_offers();
    take_failures();
    return true;
  }
  if (asks_.load(std::memory_order_seq_cst) != 0 && answer_asks()) return true;
  if (connections_.holds_traffic()) return moved;
  if (!collectives_.idle()) moved |= collectives_.advance(spins());
  if (!point_to_point_.idle() || point_to_point_.serves()) moved |= point_to_point_.progress();
  // A rank that waits for one peer may have a message of another one that explains why.
  if (thoroughly && !moved) collectives_.look_for_strays();
  return moved;
}

bool Communicator::progress_or_fail(bool thoroughly) {
  try {
    return progress(thoroughly);
  } catch (const LaneError& error) {
    connections_.suspect(error.peer(), error.what());
    take_failures();
  } catch (const LaneInterrupted& interrupted) {
    fail(observed(Cause::interrupted, options_.rank));
    interruption_ = interrupted.cause;
  } catch (Mismatch& mismatch) {
    if (collectives_.active()) mismatch.failure.sequence = collectives_.active()->sequence;
    fail(std::move(mismatch.failure));
  } catch (const std::exception& error) {
    Failure failure = observed(Cause::internal_error, options_.rank);
    failure.reason = error.what();
    fail(std::move(failure));
  }
  return true;
}

// A collective that was not queued.
void Communicator::accept(const RequestPtr& request) {
  if (failures_.phase() != FailureState::Phase::none) {
    accepted_.push_back(request);
    return stop_moving();
  }
  recorder_.open(*request);
  collectives_.push(request);
}

void Communicator::accept() {
  if (failures_.phase() != FailureState::Phase::none) return stop_moving();
  submissions_.take(accepted_);
  struct Accepted {
    std::vector<RequestPtr>& all;
    std::ptrdiff_t num = 0;
    ~Accepted() { all.erase(all.begin(), all.begin() + num); }
  } accepted{accepted_};
  // A lane may throw here: then stop_moving() finds what is still in the list.
  for (const RequestPtr& request : accepted_) {
    recorder_.open(*request);
    if (request->kind == RequestKind::collective) {
      collectives_.push(request);
    } else {
      point_to_point_.post(request);
    }
    ++accepted.num;
  }
}

// True if that ended or stopped the calls.
bool Communicator::answer_asks() {
  unsigned asks = asks_.exchange(0, std::memory_order_seq_cst);
  if (asks & ask_progress) {
    keep_progress();
    std::lock_guard lock(asks_mutex_);
    ++num_answers_;
    answered_.notify_all();
  }
  if (asks & ask_unawaited) has_unawaited_.store(has_unawaited(), std::memory_order_relaxed);
  FailurePtr stop;
  {
    std::lock_guard lock(asks_mutex_);
    if (asks & (ask_stop | ask_close)) stop = stop_;
  }
  if (!stop || (!(asks & ask_stop) && !has_calls())) return false;
  fail(*stop);
  return true;
}

// Checks everything that has a deadline of its own.
void Communicator::check(Deadline now) {
  check_deadlines(now);
  connections_.tend(now);
  take_failures();
}

// The same after reading connections, if no call may be reading them.
void Communicator::check_connections() {
  connections_.handle_events(0);
  check(Clock::now());
  check_leavers();
}

void Communicator::check_deadlines(Deadline now) {
  if (failures_.phase() != FailureState::Phase::none) {
    return failures_.expire(now) ? stop_moving() : end_held();
  }
  if (collectives_.is_late(now)) fail(timed_out());
  if (point_to_point_.idle()) return;
  RequestPtr late = point_to_point_.expire(now);
  if (!late) return;
  Failure failure = observed(Cause::timed_out, late->peer);
  failure.half_done = true;
  failure.paths = connections_.troubles_with({late->peer});
  fail(std::move(failure));
}

// A rank of this node has written all its messages before its goodbye. A call that still waits for
// it after one more turn fails. The goodbye of another node's rank may overtake its data; its lanes
// end after the last byte, and then throw.
void Communicator::check_leavers() {
  for (int peer : connections_.local_leavers()) {
    if (failures_.phase() != FailureState::Phase::none || progress_or_fail()) return;
    if (!point_to_point_.waits_for(peer) && !collectives_.waits_for(peer)) continue;
    connections_.fail_by_end(peer, {});
    return take_failures();
  }
}

Deadline Communicator::next_deadline() const {
  return std::min(
      {collectives_.next_turn(), failures_.deadline(), connections_.next_check(), next_look_});
}

// True if a signal ended the sleep.
bool Communicator::sleep(Deadline deadline) {
  // First announce the sleep, then one more turn: a peer that posts later sees the flag.
  Sleep announced(Sleeper::caller);
  announce_sleep(announced);
  if (progress_or_fail(true)) return false;
  announced.limit(std::min(deadline, next_deadline()));
  if (deadline != Deadline{}) statistics_.sleeps.add(1);
  bool whole = connections_.handle_events(announced.left_ms(Connections::longest_sleep_ms));
  check_leavers();
  return !whole;
}

// From here on, peers and threads with work for this rank wake it.
void Communicator::announce_sleep(Sleep& sleep) {
  segment_->note_starved(point_to_point_.unflushed() || collectives_.unflushed());
  sleep.announce(segment_);
  connections_.prepare_sleep(sleep);
  collectives_.sleeps();
}

void Communicator::take_failures() {
  for (Failure& failure : connections_.take_failures()) {
    if (const Request* active = collectives_.active()) {
      failure.call = active->call.fingerprint;
      failure.sequence = active->sequence;
    }
    fail(std::move(failure));
  }
}

Failure Communicator::timed_out() const {
  CallProgress progress = measure();
  const std::vector<int>& ranks = progress.waiting_for;
  Failure failure = observed(Cause::timed_out, ranks.empty() ? any_rank : ranks.front());
  failure.call = progress.fingerprint;
  failure.sequence = progress.sequence;
  failure.stage = progress.stage;
  failure.waiting_for = ranks;
  failure.paths = connections_.troubles_with(ranks);
  return failure;
}

void Communicator::fail(Failure failure) {
  keep_progress();
  if (failures_.observe(std::move(failure))) stop_moving();
}

// Nothing is read into the callers' buffers or sent from them after this. The calls may end later.
void Communicator::stop_moving() {
  std::vector<RequestPtr> incoming;
  submissions_.take(incoming);
  for (const RequestPtr& request : incoming) recorder_.open(*request);
  segment_->withdraw();  // before the callers have their memory back
  if (write_limit_ == Deadline::max()) write_limit_ = Clock::now() + longest_write;
  collectives_.abandon(held_);
  recorder_.fail_open();
  held_.insert(held_.end(), incoming.begin(), incoming.end());
  held_.insert(held_.end(), accepted_.begin(), accepted_.end());
  accepted_.clear();
  point_to_point_.abandon(held_);
  end_held();
}

// Whether a peer may still write into the memory of calls that have failed.
bool Communicator::is_written() {
  bool are_abandoned = abandon_all(point_to_point_.lanes());
  for (Channel& channel : collectives_.channels()) are_abandoned &= abandon_all(channel.lanes());
  Deadline now = Clock::now();
  bool waits = !are_abandoned && now < write_limit_;
  next_look_ = waits ? now + write_period : Deadline::max();
  return waits;
}

// Ends the calls of a communicator that has failed, once no peer writes into their memory.
void Communicator::end_held() {
  if (is_written() || held_.empty() || failures_.phase() != FailureState::Phase::ended) return;
  FailurePtr why = failures_.failure();
  for (const RequestPtr& request : std::exchange(held_, {})) request->fail(why);
  submissions_.notify_waiters();
}

CallProgress Communicator::measure() const {
  CallProgress progress;
  progress.finished = statistics_.collectives.value();
  progress.num_transfers = point_to_point_.num_pending();
  collectives_.measure(progress);
  connections_.measure(progress);
  return progress;
}

// Keeps the progress of the call that was running when the communicator failed.
void Communicator::keep_progress() {
  if (failures_.phase() != FailureState::Phase::none) return;
  CallProgress progress = measure();
  std::lock_guard lock(asks_mutex_);
  progress_made_ = std::move(progress);
}

}  // namespace hccl
