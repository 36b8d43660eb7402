// The driving half of Communicator: what the one thread that holds the baton does. How threads come
// by the baton stands in communicator.cc.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine/communicator.h"

namespace hccl {

namespace {

// Without a core of our own every yield lets another rank run; after these it is asleep anyway.
constexpr int num_yields = 200;
constexpr auto look_period = std::chrono::milliseconds(50);
constexpr uint64_t sequence_mask = 0xffff;  // the low bits of a fingerprint
// Above them: what kind of call it is, for the counters.
constexpr int kind_shift = 16;
constexpr uint64_t kind_mask = 0xf;

}  // namespace

// Drives until the request is done or the deadline has passed, then passes the baton.
void Communicator::drive(const RequestPtr& request, Deadline deadline,
                         const Interrupt& interrupt) {
  struct Baton {
    Communicator& communicator;
    ~Baton() {
      bool close = std::exchange(communicator.close_afterwards_, false);
      communicator.driver_.store(std::thread::id(), std::memory_order_relaxed);
      communicator.pass_baton();
      if (close) communicator.close();
    }
  } baton{*this};
  driver_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  Idle idle(may_spin_ ? &spins_ : nullptr, num_yields);
  int num_moves = 0;
  Deadline next_look = Clock::now() + look_period;
  while (!request->is_done()) {
    notify_waiters();
    bool moved = progress_or_fail();
    rethrow_interruption();
    if (!moved && idle.begins_to_spin() && shares_core()) idle.give_up();
    bool signalled = false;
    if (moved) {
      idle.reset();
      if ((++num_moves & 255) != 0) continue;
      handle_events(0);  // that something moves says nothing about the rest
    } else if (idle.turn()) {
      if (!idle.look_at_clock()) continue;
    } else {
      signalled = sleep(deadline);
    }
    check_deadlines();
    Deadline now = Clock::now();
    tend_connections(now);
    if (signalled || now >= next_look) {
      ask(interrupt);
      next_look = now + look_period;
    }
    if (now >= deadline) return;
  }
}

// Lets the caller interrupt the wait. To ask may cost milliseconds: Python has to give us its lock.
void Communicator::ask(const Interrupt& interrupt) {
  try {
    interrupt();
  } catch (...) {
    fail_interrupted();
    throw;
  }
}

void Communicator::fail_interrupted() {
  fail(observed(Cause::interrupted, options_.rank));
}

// Whether the scheduler has put another rank of this node on our core, where it waits for us to stop
// spinning. A sleeper is woken on a core that is free.
bool Communicator::shares_core() {
  uint32_t core = segment_->note_core();
  return std::any_of(local_segments_.begin(), local_segments_.end(), [core](const auto& segment) {
    return segment->header().core.load(std::memory_order_relaxed) == core;
  });
}

bool Communicator::progress(bool thoroughly) {
  bool moved = num_incoming_.load(std::memory_order_seq_cst) > 0;
  if (moved) accept_requests();
  if (num_adoptions_.load(std::memory_order_seq_cst) > 0) {
    adopt_connections();
    moved = true;
  }
  if (asks_.load(std::memory_order_seq_cst) != 0 && obey()) return true;
  if (active_ || !collectives_.empty()) moved |= advance_collective();
  if (!point_to_point_->idle()) moved |= point_to_point_->progress();
  // Who waits for one rank may have been sent something by another that tells why it waits.
  if (thoroughly && !moved && active_) {
    for (Channel& channel : channels_) channel.look_for_strays(active_->call.fingerprint);
  }
  return moved;
}

// What goes wrong on a lane often has its explanation on a control link: look there first.
bool Communicator::progress_or_fail(bool thoroughly) {
  try {
    return progress(thoroughly);
  } catch (const LaneError& error) {
    await_explanation(error.peer());
    fail_by_peer(error.peer(), error.what());
  } catch (const LaneInterrupted& interrupted) {
    fail_interrupted();
    interruption_ = interrupted.cause;
  } catch (const Mismatch& mismatch) {
    Failure failure = observed(Cause::mismatch, mismatch.peer);
    failure.call = mismatch.call;
    failure.their_call = mismatch.their_call;
    failure.sent_bytes = mismatch.sent_bytes;
    failure.expected_bytes = mismatch.expected_bytes;
    if (active_) failure.sequence = active_->sequence;
    fail(std::move(failure));
  } catch (const std::exception& error) {
    Failure failure = observed(Cause::internal_error, options_.rank);
    failure.reason = error.what();
    fail(std::move(failure));
  }
  return true;
}

// A lane's own code ran into the caller's signal handler: what that raised is the caller's.
void Communicator::rethrow_interruption() {
  if (interruption_) std::rethrow_exception(std::exchange(interruption_, nullptr));
}

void Communicator::accept_requests() {
  if (diagnosis_deadline_) return stop_moving();
  {
    std::lock_guard lock(mutex_);
    std::swap(incoming_, accepted_);
    num_incoming_.store(0, std::memory_order_seq_cst);
  }
  // A lane may throw here: then fail() finds what is still in the list.
  while (!accepted_.empty()) {
    recorder_.open(*accepted_.front());
    if (accepted_.front()->kind == RequestKind::collective) {
      collectives_.push_back(accepted_.front());
    } else {
      point_to_point_->post(accepted_.front());
    }
    accepted_.erase(accepted_.begin());
  }
}

bool Communicator::advance_collective() {
  if (!active_) begin_collective();
  bool moved = false;
  bool finished = true;
  if (in_place_ && in_place_->state() != InPlace::State::idle) {
    moved = advance_in_place();
    lateness_.turn(moved, may_spin_);
    return moved;
  }
  for (Channel& channel : channels_) {
    moved |= channel.step();
    moved |= channel.flush();
    finished &= channel.finished();
  }
  if (finished) end_collective(false);
  moved |= finished;
  lateness_.turn(moved, may_spin_);
  return moved;
}

void Communicator::begin_collective() {
  active_ = std::move(collectives_.front());
  collectives_.pop_front();
  Call& call = active_->call;
  call.fingerprint = (call.fingerprint & ~sequence_mask) | (active_->sequence & sequence_mask);
  recorder_.start(*active_, last_end_ns_);
  lateness_.begin(active_->sequence);
  if (in_place_ && InPlace::wants(call)) {
    in_place_->begin(call);
  } else {
    begin_plan();
  }
}

// Collectives on registered memory need no plan, once all ranks know that all of it is.
bool Communicator::advance_in_place() {
  bool moved = in_place_->step();
  if (in_place_->state() == InPlace::State::declined) {
    in_place_->leave();
    begin_plan();
  } else if (in_place_->state() == InPlace::State::finished) {
    in_place_->leave();
    statistics_.in_place.add(1);
    end_collective(true);
  }
  return moved;
}

void Communicator::begin_plan() {
  const Call& call = active_->call;
  active_->tiling = Tiling(call, options_.segment.slot_bytes, options_.num_channels);
  for (int i = 0; i < options_.num_channels; ++i) {
    channels_[static_cast<size_t>(i)].start(call, active_->tiling, i, options_.num_channels);
  }
}

void Communicator::end_collective(bool in_place) {
  statistics_.collectives.add(1);
  record_end(CallState::completed, in_place);
  RequestPtr request = std::move(active_);
  active_.reset();
  request->finish();
}

void Communicator::record_end(CallState state, bool in_place) {
  last_end_ns_ = steady_ns(Clock::now());
  recorder_.end(*active_, state, {last_end_ns_, lateness_.late_ns(), lateness_.arrived_ns(),
                                  lateness_.last_rank(), in_place});
  lateness_.end();
  if (state != CallState::completed) return;
  uint64_t busy_ns = last_end_ns_ - active_->started_ns;
  uint64_t waiting_ns = std::min(busy_ns, lateness_.late_ns());
  statistics_.calls[active_->call.fingerprint >> kind_shift & kind_mask].add(waiting_ns,
                                                                            busy_ns - waiting_ns);
}

// Before the calls of a communicator that has failed are forgotten.
void Communicator::record_failure() {
  if (active_) {
    std::vector<int> awaited = measure_progress().waiting_for;
    lateness_.give_up(awaited.empty() ? any_rank : awaited.front());
    record_end(CallState::failed, false);
  }
  recorder_.fail_open();
}

// True if a signal ended the sleep.
bool Communicator::sleep(Deadline deadline) {
  bool signalled = false;
  // First the sign that we sleep, then one more look: a peer that posts after the look sees the sign.
  Sleep announced(Sleeper::caller);
  announce_sleep(announced);
  if (!progress_or_fail(true)) {
    if (active_) deadline = std::min(deadline, active_->deadline);
    if (diagnosis_deadline_) deadline = std::min(deadline, *diagnosis_deadline_);
    announced.limit(deadline);
    statistics_.sleeps.add(1);
    signalled = !handle_events(announced.left_ms(longest_sleep_ms()));
    check_leavers();
  }
  return signalled;
}

// From here on, a peer or a thread that has something for this rank rings.
void Communicator::announce_sleep(Sleep& sleep) {
  segment_->note_starved(starved());
  sleep.announce(segment_);
  for (Lane* lane : announced_lanes_) lane->prepare_sleep(sleep);
  lateness_.sleeps();
}

// Whether something of ours waits until peers have read what they got.
bool Communicator::starved() const {
  return point_to_point_->unflushed() || (in_place_ && in_place_->unflushed()) ||
         std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.unflushed(); });
}

// False if a signal cut it short.
bool Communicator::handle_events(int timeout_ms) {
  epoll_event events[32];
  int num_events = epoll_wait(epoll_.get(), events, 32, timeout_ms);
  for (int i = 0; i < num_events; ++i) {
    uint64_t tag = events[i].data.u64;
    if (tag < links_.size()) {
      receive_control(*links_[tag]);
    } else if (tag != wake_tag && (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
      tcp_lanes_.at(tag - lane_tag)->look();
    }
  }
  return num_events >= 0 || errno != EINTR;
}

void Communicator::receive_control(ControlLink& link) {
  ControlLink::State before = link.state();
  link.receive();
  follow_link(link);
  note_ended(link);
  if (before == ControlLink::State::open && link.state() == ControlLink::State::lost) {
    fail_by_peer(link.peer(), {});
  }
}

void Communicator::wake() {
  if (segment_->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
  signal_event(doorbell_);
}

}  // namespace hccl
