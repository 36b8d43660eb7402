#include "communicator.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "progress_thread.h"

namespace hccl {

namespace {

// Without a core of our own every yield lets another rank run; after these it is asleep anyway.
constexpr int num_yields = 200;
// Everything that matters rings a bell; this only bounds how late a signal or deadline is seen.
constexpr int max_sleep_ms = 100;
constexpr auto waiter_slice = std::chrono::milliseconds(50);
constexpr auto explanation_time = std::chrono::milliseconds(300);
constexpr uint64_t sequence_mask = 0xffff;  // the low bits of a fingerprint
constexpr uint64_t not_control = ~uint64_t{0};
constexpr const char* interrupted = "a signal interrupted the call half-way";
constexpr const char* closed_early = "the communicator was closed while calls were under way";

std::string join(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Descriptor opened(int fd, const char* call) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), call);
  return Descriptor(fd);
}

}  // namespace

Communicator::Communicator(const CommunicatorOptions& options,
                           std::shared_ptr<ProgressThread> progress)
    : options_(options),
      progress_thread_(std::move(progress)),
      segment_(Segment::create(options.segment)),
      doorbell_(opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {
  const SegmentShape& shape = options_.segment;
  if (shape.num_channels != options_.num_channels + 1 ||
      shape.num_slots < shape.num_local_ranks) {
    throw std::invalid_argument("a segment too small for its channels and ranks");
  }
  size_t slot_bytes = options_.segment.slot_bytes;
  size_t num_ranks = static_cast<size_t>(options_.world_size);
  for (int i = 0; i < options_.num_channels; ++i) {
    channels_.emplace_back(options_.rank, options_.world_size, slot_bytes);
  }
  point_to_point_ =
      std::make_unique<PointToPoint>(options_.rank, options_.world_size, slot_bytes);
  for (int i = 0; i <= options_.num_channels; ++i) {
    outboxes_.push_back(std::make_shared<Outbox>(segment_, i));
  }
  links_.resize(num_ranks);
  watch(doorbell_.get(), not_control);
}

Communicator::~Communicator() { close(); }

void Communicator::watch(int fd, uint64_t tag) {
  // Edge-triggered: bytes that nobody asked for yet must not keep a sleeper awake. Before it
  // sleeps, a driver has found every lane it needs empty, so whatever comes next is an edge.
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (fd == doorbell_.get()) event.events = EPOLLIN | EPOLLET;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Communicator::add_shm_peer(int peer, std::shared_ptr<Segment> theirs,
                                Descriptor their_doorbell, Descriptor control) {
  size_t index = static_cast<size_t>(peer);
  auto bell = std::make_shared<Doorbell>(theirs, std::move(their_doorbell), statistics_);
  local_segments_.push_back(theirs);
  links_.at(index) = std::make_unique<ControlLink>(peer, std::move(control));
  auto local_rank = [this](int rank) {
    const std::vector<int>& ranks = options_.local_ranks;
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  for (int c = 0; c <= options_.num_channels; ++c) {
    ShmQueuePair::Ends ends{segment_, theirs, local_rank(options_.rank), local_rank(peer), bell,
                            c};
    auto& lanes = c < options_.num_channels ? channels_[static_cast<size_t>(c)].lanes()
                                            : point_to_point_->lanes();
    lanes[index] = std::make_unique<ShmQueuePair>(peer, ends, outboxes_[static_cast<size_t>(c)],
                                                  statistics_);
  }
  watch(links_[index]->fd(), index);
}

void Communicator::add_tcp_peer(int peer, std::vector<Descriptor> sockets, Descriptor control) {
  size_t index = static_cast<size_t>(peer);
  if (sockets.size() != static_cast<size_t>(options_.num_channels) + 1) {
    throw std::invalid_argument("one connection per channel and one for point-to-point");
  }
  links_.at(index) = std::make_unique<ControlLink>(peer, std::move(control));
  for (size_t c = 0; c < sockets.size(); ++c) {
    auto& lanes = c + 1 < sockets.size() ? channels_[c].lanes() : point_to_point_->lanes();
    watch(sockets[c].get(), not_control);
    lanes[index] = std::make_unique<TcpQueuePair>(peer, std::move(sockets[c]),
                                                  options_.segment.slot_bytes, statistics_);
  }
  watch(links_[index]->fd(), index);
}

// ---------------------------------------------------------------- callers

// Returns true if the caller has the baton now.
bool Communicator::enqueue(const RequestPtr& request) {
  std::lock_guard lock(mutex_);
  if (failure_.kind != FailureKind::none) throw CommunicatorFailed(failure_);
  if (closed_) {
    Failure failure;
    failure.kind = FailureKind::aborted;
    failure.text = "the communicator is closed";
    throw CommunicatorFailed(failure);
  }
  if (request->kind == RequestKind::collective) request->sequence = ++sequence_;
  incoming_.push_back(request);
  // Pairs with the sleeper's look at num_incoming_ after it raised `sleepers`.
  num_incoming_.fetch_add(1, std::memory_order_seq_cst);
  if (driving_) return false;
  driving_ = true;
  return true;
}

bool Communicator::try_take_baton() {
  std::lock_guard lock(mutex_);
  if (driving_ || closed_) return false;
  driving_ = true;
  return true;
}

// For the progress thread. If it leaves the baton to a waiter, that one hands the work back.
bool Communicator::take_baton_nobody_waits_for() {
  std::lock_guard lock(mutex_);
  if (driving_ || closed_) return false;
  declined_ = num_waiters_.load(std::memory_order_relaxed) > 0;
  driving_ = !declined_;
  return driving_;
}

void Communicator::drop_baton() {
  std::lock_guard lock(mutex_);
  driving_ = false;
  if (num_waiters_.load(std::memory_order_relaxed) > 0) baton_passed_.notify_all();
}

bool Communicator::work_left() const {
  return active_ || !collectives_.empty() || !point_to_point_->idle() ||
         num_incoming_.load(std::memory_order_seq_cst) > 0;
}

// What came in while we drove is ours to hand on: look after the baton was dropped.
bool Communicator::work_came_in() const {
  return num_incoming_.load(std::memory_order_seq_cst) > 0 || abort_asked();
}

void Communicator::pass_baton() {
  bool left = work_left();
  drop_baton();
  if (abort_asked() && try_take_baton()) {
    progress_or_fail();
    drop_baton();
  } else if (left || work_came_in()) {
    progress_thread_->kick(shared_from_this());
  }
}

// Work that the progress thread left to this waiter, which never came to drive, goes back.
void Communicator::stop_waiting() {
  bool orphaned;
  {
    std::lock_guard lock(mutex_);
    bool last = num_waiters_.fetch_sub(1, std::memory_order_relaxed) == 1;
    orphaned = declined_ && last && !driving_ && !closed_;
    if (orphaned) declined_ = false;
  }
  if (orphaned) progress_thread_->kick(shared_from_this());
}

// Wakes waiters if something has finished since the last time.
void Communicator::notify_waiters() {
  uint64_t num_finished = statistics_.collectives.value() + point_to_point_->num_finished();
  if (num_finished == num_finished_seen_) return;
  num_finished_seen_ = num_finished;
  // An update, not a load: either it comes after the one in wait() and finds the waiter, or wait()'s
  // comes after it and finds the request done.
  if (num_waiters_.fetch_add(0, std::memory_order_seq_cst) == 0) return;
  std::lock_guard lock(mutex_);
  baton_passed_.notify_all();
}

void Communicator::run(const RequestPtr& request, const Interrupt& interrupt) {
  if (!enqueue(request)) {
    wake();
    try {
      wait(request, Deadline::max(), interrupt);
    } catch (const CommunicatorFailed&) {
      throw;
    } catch (...) {
      // The caller takes the buffers along, so the engine must be done with them.
      abort(interrupted);
      try {
        wait(request, Deadline::max(), [] {});
      } catch (const CommunicatorFailed&) {
      }
      throw;
    }
    return;
  }
  drive(request, Deadline::max(), interrupt);
  if (request->failure.kind != FailureKind::none) throw CommunicatorFailed(request->failure);
}

void Communicator::start(const RequestPtr& request) {
  progress_thread_->start();
  if (!enqueue(request)) {
    wake();
    return;
  }
  // Send at once what can be sent: the peers wait for it while the progress thread wakes up.
  progress_or_fail();
  pass_baton();
}

bool Communicator::wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt) {
  struct Waiter {
    Communicator& communicator;
    ~Waiter() { communicator.stop_waiting(); }
  };
  if (!request->is_done()) {
    num_waiters_.fetch_add(1, std::memory_order_seq_cst);
    Waiter waiter{*this};
    std::unique_lock lock(mutex_);
    while (!request->is_done()) {
      if (Clock::now() >= deadline) return false;
      if (!driving_ && !closed_) {
        driving_ = true;
        lock.unlock();
        drive(request, deadline, interrupt);
        lock.lock();
        continue;
      }
      baton_passed_.wait_until(lock, std::min(deadline, Clock::now() + waiter_slice));
      lock.unlock();
      interrupt();
      lock.lock();
    }
  }
  if (request->failure.kind != FailureKind::none) throw CommunicatorFailed(request->failure);
  return true;
}

void Communicator::abort(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (failure_.kind != FailureKind::none || closed_ || stop_ == Stop::abort) return;
    stop_reason_ = reason;
    stop_.store(Stop::abort, std::memory_order_seq_cst);
  }
  wake();
  // Whoever drives sees it, at the latest when the baton was dropped; if nobody does it is up to us.
  if (try_take_baton()) {
    progress_or_fail();
    drop_baton();
  }
}

void Communicator::ask_to_close() {
  if (stop_.load(std::memory_order_relaxed) == Stop::abort) return;
  stop_reason_ = closed_early;
  stop_.store(Stop::close, std::memory_order_seq_cst);
}

void Communicator::close() {
  if (driver_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    // A signal handler, inside the very call that it ends.
    close_afterwards_ = true;
    std::lock_guard lock(mutex_);
    ask_to_close();
    return;
  }
  for (std::unique_lock lock(mutex_);;) {
    if (closed_) return;
    if (!driving_) {
      driving_ = true;
      closed_ = true;
      break;
    }
    ask_to_close();
    wake();
    baton_passed_.wait_for(lock, std::chrono::milliseconds(1));
  }
  if (work_left() && failure_.kind == FailureKind::none) {
    Failure failure;
    failure.kind = FailureKind::aborted;
    failure.rank = options_.rank;
    failure.text = closed_early;
    fail(failure);
  }
  for (auto& link : links_) {
    if (link && link->state() == ControlLink::State::open) link->say_goodbye(sequence_);
  }
  channels_.clear();
  point_to_point_.reset();
  outboxes_.clear();
  links_.clear();
  local_segments_.clear();
}

std::optional<Failure> Communicator::failure() const {
  std::lock_guard lock(mutex_);
  if (failure_.kind == FailureKind::none) return std::nullopt;
  return failure_;
}

uint64_t Communicator::sequence() const {
  std::lock_guard lock(mutex_);
  return sequence_;
}

// ---------------------------------------------------------------- the driver

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
  Idle idle(may_spin_, num_yields);
  int num_moves = 0;
  while (!request->is_done()) {
    notify_waiters();
    bool moved = progress_or_fail();
    if (!moved && idle.begins_to_spin() && shares_core()) idle.give_up();
    if (moved) {
      idle.reset();
      if ((++num_moves & 255) != 0) continue;
      handle_events(0);  // that something moves says nothing about the rest
    } else if (idle.turn()) {
      if (!idle.look_at_clock()) continue;
    } else {
      sleep(deadline);
      try {
        interrupt();
      } catch (...) {
        Failure failure;
        failure.kind = FailureKind::aborted;
        failure.rank = options_.rank;
        failure.text = interrupted;
        fail(failure);
        throw;
      }
    }
    check_deadlines();
    if (deadline != Deadline::max() && Clock::now() >= deadline) return;
  }
}

// Whether the scheduler has put another rank of this node on our core, where it waits for us to stop
// spinning. A sleeper is woken on a core that is free.
bool Communicator::shares_core() {
  uint32_t core = segment_->note_core();
  return std::any_of(local_segments_.begin(), local_segments_.end(), [core](const auto& segment) {
    return segment->header().core.load(std::memory_order_relaxed) == core;
  });
}

bool Communicator::progress() {
  bool moved = num_incoming_.load(std::memory_order_seq_cst) > 0;
  if (moved) accept_requests();
  if (stop_.load(std::memory_order_seq_cst) != Stop::no && obey_stop()) return true;
  if (active_ || !collectives_.empty()) moved |= advance_collective();
  if (!point_to_point_->idle()) moved |= point_to_point_->progress();
  return moved;
}

bool Communicator::obey_stop() {
  Failure failure;
  failure.kind = FailureKind::aborted;
  failure.rank = options_.rank;
  {
    std::lock_guard lock(mutex_);
    failure.text = stop_reason_;
    if (stop_.exchange(Stop::no) == Stop::close && !work_left()) return false;
  }
  fail(failure);
  return true;
}

// What goes wrong on a lane often has its explanation on a control link: look there first.
bool Communicator::progress_or_fail() {
  try {
    return progress();
  } catch (const LaneError& error) {
    await_explanation(error.peer());
    left_or_lost(error.peer(), error.what());
  } catch (const Mismatch& mismatch) {
    Failure failure;
    failure.kind = FailureKind::mismatch;
    failure.rank = mismatch.peer;
    failure.expected = mismatch.expected;
    failure.received = mismatch.received;
    failure.text = mismatch.what();
    fail(failure);
  } catch (const std::exception& error) {
    Failure failure;
    failure.kind = FailureKind::internal;
    failure.rank = options_.rank;
    failure.text = error.what();
    fail(failure);
  }
  return true;
}

// A lane and its control link close together, but the news may arrive in either order.
void Communicator::await_explanation(int peer) {
  Deadline until = Clock::now() + explanation_time;
  ControlLink& link = *links_[static_cast<size_t>(peer)];
  do {
    handle_events(10);
  } while (link.state() == ControlLink::State::open && !failure() && Clock::now() < until);
}

void Communicator::accept_requests() {
  {
    std::lock_guard lock(mutex_);
    std::swap(incoming_, accepted_);
    num_incoming_.store(0, std::memory_order_seq_cst);
  }
  // A lane may throw here: then fail() finds what is still in the list.
  while (!accepted_.empty()) {
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
  for (Channel& channel : channels_) {
    moved |= channel.step();
    moved |= channel.flush();
    finished &= channel.finished();
  }
  if (finished) end_collective();
  return moved || finished;
}

void Communicator::begin_collective() {
  active_ = std::move(collectives_.front());
  collectives_.pop_front();
  Call& call = active_->call;
  call.fingerprint = (call.fingerprint & ~sequence_mask) | (active_->sequence & sequence_mask);
  active_->tiling = Tiling(call, options_.segment.slot_bytes, options_.num_channels);
  for (int i = 0; i < options_.num_channels; ++i) {
    channels_[static_cast<size_t>(i)].start(call, active_->tiling, i, options_.num_channels);
  }
}

void Communicator::end_collective() {
  statistics_.collectives.add(1);
  RequestPtr request = std::move(active_);
  active_.reset();
  request->finish();
}

Failure Communicator::timed_out() const {
  Failure failure;
  failure.kind = FailureKind::timed_out;
  std::vector<int> ranks;
  std::string position;
  for (const Channel& channel : channels_) {
    if (channel.finished()) continue;
    for (int rank : channel.waiting_for()) {
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
    if (position.empty()) position = channel.position();
  }
  std::sort(ranks.begin(), ranks.end());
  if (!ranks.empty()) failure.rank = ranks.front();
  failure.expected = active_->call.fingerprint;
  failure.text = "waiting for " + join(ranks) + " at " + position;
  return failure;
}

void Communicator::check_deadlines() {
  Deadline now = Clock::now();
  auto is_late = [now](const RequestPtr& request) { return now >= request->deadline; };
  if (active_ && (is_late(active_) ||
                  std::any_of(collectives_.begin(), collectives_.end(), is_late))) {
    fail(timed_out());
  }
  if (point_to_point_->idle()) return;
  RequestPtr late = point_to_point_->expire(now);
  if (!late) return;
  Failure failure;
  failure.kind = FailureKind::timed_out;
  failure.rank = late->peer;
  failure.text = "a message was half-way when its time was up";
  fail(failure);
}

void Communicator::sleep(Deadline deadline) {
  // First the sign that we sleep, then one more look: a peer that posts after the look sees the sign.
  segment_->begin_nap(starved());
  if (!progress_or_fail()) {
    if (active_) deadline = std::min(deadline, active_->deadline);
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    statistics_.sleeps.add(1);
    handle_events(static_cast<int>(std::clamp<int64_t>(left, 0, max_sleep_ms)));
    check_leavers();
  }
  segment_->end_nap();
}

// Whether something of ours waits until peers have read what they got.
bool Communicator::starved() const {
  return point_to_point_->unflushed() ||
         std::any_of(channels_.begin(), channels_.end(),
                     [](const Channel& channel) { return channel.unflushed(); });
}

void Communicator::handle_events(int timeout_ms) {
  epoll_event events[32];
  int num_events = epoll_wait(epoll_.get(), events, 32, timeout_ms);
  for (int i = 0; i < num_events; ++i) {
    uint64_t tag = events[i].data.u64;
    if (tag != not_control) receive_control(*links_[tag]);
  }
}

void Communicator::receive_control(ControlLink& link) {
  ControlLink::State before = link.state();
  std::optional<Failure> reported = link.receive();
  if (reported) {
    if (reported->reporter < 0) reported->reporter = link.peer();
    fail(std::move(*reported));
    return;
  }
  if (before == ControlLink::State::open && link.state() == ControlLink::State::lost) {
    left_or_lost(link.peer(), "its connections closed without a goodbye");
  }
}

void Communicator::left_or_lost(int peer, const std::string& what) {
  ControlLink& link = *links_[static_cast<size_t>(peer)];
  Failure failure;
  failure.kind = FailureKind::peer_lost;
  failure.rank = peer;
  if (active_) failure.expected = active_->call.fingerprint;
  switch (link.state()) {
    case ControlLink::State::open: failure.text = "can be reached no more: " + what; break;
    case ControlLink::State::left:
      failure.text = "left after collective " + std::to_string(link.last_sequence());
      break;
    case ControlLink::State::lost: failure.text = "died: " + what; break;
  }
  fail(failure);
}

bool Communicator::waits_for(int peer) {
  if (point_to_point_->waits_for(peer)) return true;
  if (!active_) return false;
  return std::any_of(channels_.begin(), channels_.end(), [peer](Channel& channel) {
    std::vector<int> ranks = channel.waiting_for();
    return std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
  });
}

// A rank of this node that left has written all it had to say before its goodbye, so whoever still
// waits for it after another look waits in vain. Of other nodes a goodbye may overtake the data; but
// their lanes end after the last byte, and tell so themselves.
void Communicator::check_leavers() {
  for (int peer : options_.local_ranks) {
    const std::unique_ptr<ControlLink>& link = links_[static_cast<size_t>(peer)];
    if (!link || link->state() != ControlLink::State::left) continue;
    if (progress_or_fail()) return;
    if (waits_for(peer)) left_or_lost(peer, "");
  }
}

void Communicator::fail(Failure failure) {
  bool first = false;
  std::vector<RequestPtr> requests;
  {
    std::lock_guard lock(mutex_);
    if (failure_.kind == FailureKind::none) {
      failure_ = std::move(failure);
      first = true;
    }
    requests.swap(incoming_);
    num_incoming_.store(0, std::memory_order_seq_cst);
  }
  if (active_) requests.push_back(std::move(active_));
  active_.reset();
  requests.insert(requests.end(), collectives_.begin(), collectives_.end());
  collectives_.clear();
  requests.insert(requests.end(), accepted_.begin(), accepted_.end());
  accepted_.clear();
  for (Channel& channel : channels_) channel.abandon();
  if (first) {
    for (auto& link : links_) {
      if (link && link->state() == ControlLink::State::open) link->report(failure_);
    }
  }
  for (const RequestPtr& request : requests) request->fail(failure_);
  point_to_point_->abandon(failure_);
  std::lock_guard lock(mutex_);
  baton_passed_.notify_all();
}

void Communicator::wake() {
  if (segment_->header().sleepers.load(std::memory_order_seq_cst) == 0) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
}

// ---------------------------------------------------------------- the progress thread

Communicator::Turn Communicator::progress_turn() {
  if (!take_baton_nobody_waits_for()) return Turn::not_mine;
  // Before a sleep it is done anyway, but busy neighbours may keep the thread awake.
  if ((++num_turns_ & 63) == 0) check_neglected();
  bool moved = progress_or_fail();
  bool left = work_left();
  drop_baton();
  if (!left && !work_came_in()) return Turn::not_mine;
  return moved ? Turn::moved : Turn::idle;
}

void Communicator::check_neglected() {
  handle_events(0);
  check_deadlines();
  check_leavers();
}

bool Communicator::prepare_sleep() {
  if (!take_baton_nobody_waits_for()) return false;
  // Before the nap: a bell that was rung for this nap must still be heard when we sleep.
  check_neglected();
  segment_->begin_nap(starved());
  bool stay_awake = progress_or_fail() || !work_left();
  drop_baton();
  if (stay_awake) finish_sleep();
  return !stay_awake;
}

void Communicator::finish_sleep() { segment_->end_nap(); }

}  // namespace hccl
