#include "engine/communicator.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "progress/progress_thread.h"

namespace hccl {

namespace {

constexpr auto waiter_slice = std::chrono::milliseconds(50);

}  // namespace

Communicator::Communicator(const CommunicatorOptions& options,
                           std::shared_ptr<ProgressThread> progress)
    : options_(options),
      progress_thread_(std::move(progress)),
      segment_(Segment::create(options.segment)),
      doorbell_(new_event()),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      repair_(new_event()),
      news_(new_event()),
      lateness_(options.rank, options.world_size) {
  const SegmentShape& shape = options_.segment;
  if (shape.num_channels != options_.num_channels + 1 ||
      shape.num_slots < shape.num_local_ranks) {
    throw std::invalid_argument("a segment too small for its channels and ranks");
  }
  size_t slot_bytes = options_.segment.slot_bytes;
  size_t num_ranks = static_cast<size_t>(options_.world_size);
  for (int i = 0; i < options_.num_channels; ++i) {
    channels_.emplace_back(options_.rank, options_.world_size, slot_bytes, lateness_);
  }
  point_to_point_ =
      std::make_unique<PointToPoint>(options_.rank, options_.world_size, slot_bytes, recorder_,
                                     statistics_);
  for (int i = 0; i <= options_.num_channels; ++i) {
    outboxes_.push_back(std::make_shared<Outbox>(segment_, i));
  }
  links_.resize(num_ranks);
  if (num_ranks > 1 && options_.local_ranks.size() == num_ranks) {
    in_place_ = std::make_unique<InPlace>(options_.rank, channels_.at(0).lanes(), local_segments_,
                                          options_.arena, lateness_);
  }
  tcp_peers_.resize(num_ranks);
  watch(doorbell_.get(), wake_tag);
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
  auto bell = std::make_shared<Doorbell>(theirs, std::move(their_doorbell), statistics_);
  local_segments_.push_back(theirs);
  auto local_rank = [this](int rank) {
    const std::vector<int>& ranks = options_.local_ranks;
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int c = 0; c <= options_.num_channels; ++c) {
    ShmLane::Ends ends{segment_, theirs, local_rank(options_.rank), local_rank(peer), bell, c};
    lanes.push_back(std::make_unique<ShmLane>(peer, ends, outboxes_[static_cast<size_t>(c)],
                                              statistics_));
  }
  add_peer(peer, std::move(lanes), {std::make_shared<SocketStream>(std::move(control))});
}

void Communicator::set_peer_arena(int peer, std::shared_ptr<ArenaWindow> theirs) {
  if (in_place_) in_place_->set_window(peer, std::move(theirs));
}

void Communicator::add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes,
                            Connections controls) {
  if (lanes.size() != static_cast<size_t>(options_.num_channels) + 1) {
    throw std::invalid_argument("one lane per channel and one for point-to-point");
  }
  size_t index = static_cast<size_t>(peer);
  links_.at(index) = std::make_unique<ControlLink>(peer, std::move(controls));
  for (size_t c = 0; c < lanes.size(); ++c) {
    auto& its = c + 1 < lanes.size() ? channels_[c].lanes() : point_to_point_->lanes();
    std::vector<int> descriptors = lanes[c]->descriptors();
    for (int fd : descriptors) watch(fd, wake_tag);
    if (!descriptors.empty()) announced_lanes_.push_back(lanes[c].get());
    its[index] = std::move(lanes[c]);
  }
  for (size_t path = 0; path < links_[index]->num_paths(); ++path) {
    watch(links_[index]->fd(path), index);
  }
}

// ---------------------------------------------------------------- callers

// Returns true if the caller has the baton now.
bool Communicator::enqueue(const RequestPtr& request) {
  std::lock_guard lock(mutex_);
  if (failure_) throw CommunicatorFailed(failure_);
  if (closed_) {
    throw CommunicatorFailed(std::make_shared<Failure>(observed(Cause::closed, options_.rank)));
  }
  if (request->kind == RequestKind::collective) request->sequence = ++sequence_;
  std::thread::id me = std::this_thread::get_id();
  if (submitter_ != me) {
    several_submitters_ |= submitter_ != std::thread::id();
    submitter_ = me;
  }
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

bool Communicator::calls_left() const {
  return active_ || !collectives_.empty() || point_to_point_->num_pending() > 0 ||
         !doomed_.empty() || num_incoming_.load(std::memory_order_seq_cst) > 0;
}

// Of a call that has ended, bytes may still be on their way.
bool Communicator::work_left() const { return calls_left() || !point_to_point_->idle(); }

// What came in while we drove is ours to hand on: look after the baton was dropped.
bool Communicator::work_came_in() const {
  return num_incoming_.load(std::memory_order_seq_cst) > 0 || asked(~ask_close);
}

void Communicator::pass_baton() {
  bool left = work_left();
  drop_baton();
  if (asked(~ask_close) && try_take_baton()) {
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
      abort({}, Cause::interrupted);
      try {
        wait(request, Deadline::max(), [] {});
      } catch (const CommunicatorFailed&) {
      }
      throw;
    }
    return;
  }
  drive(request, Deadline::max(), interrupt);
  if (request->failure) throw CommunicatorFailed(request->failure);
}

void Communicator::start(const RequestPtr& request) {
  progress_thread_->start();
  if (!enqueue(request)) {
    wake();
    return;
  }
  // Send at once what can be sent: the peers wait for it while the progress thread wakes up.
  progress_or_fail();
  std::exception_ptr interruption = std::exchange(interruption_, nullptr);
  pass_baton();
  if (interruption) std::rethrow_exception(interruption);
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
  if (request->failure) throw CommunicatorFailed(request->failure);
  return true;
}

void Communicator::abort(const std::string& reason, Cause cause) {
  Failure failure = observed(cause, options_.rank);
  failure.reason = reason;
  {
    std::lock_guard lock(mutex_);
    if (failure_ || closed_ || asked(ask_abort | ask_diagnosis)) return;
    asked_ = std::make_shared<Failure>(std::move(failure));
    asks_.fetch_or(ask_abort, std::memory_order_seq_cst);
  }
  drive_once();
}

void Communicator::ask_to_close() {
  if (asked(ask_abort | ask_diagnosis)) return;
  asked_ = std::make_shared<Failure>(observed(Cause::closed, options_.rank));
  asks_.fetch_or(ask_close, std::memory_order_seq_cst);
}

void Communicator::close(const std::string& error) {
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
  if (calls_left() && !failure_) {
    end_all(diagnosis_deadline_ ? report_
                                : std::make_shared<Failure>(observed(Cause::closed, options_.rank)));
  }
  if (!failure_) deliver_rest();
  for (auto& link : links_) {
    if (link && link->state() == ControlLink::State::open) link->say_goodbye(sequence_, error);
  }
  in_place_.reset();
  announced_lanes_.clear();
  tcp_lanes_.clear();
  tcp_peers_.clear();
  channels_.clear();
  point_to_point_.reset();
  outboxes_.clear();
  links_.clear();
  local_segments_.clear();
}

FailurePtr Communicator::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Communicator::Caller Communicator::caller() const {
  std::lock_guard lock(mutex_);
  bool drives = driver_.load(std::memory_order_relaxed) != std::thread::id();
  bool waits = num_waiters_.load(std::memory_order_relaxed) > 0;
  return {submitter_, several_submitters_, drives || waits};
}

uint64_t Communicator::sequence() const {
  std::lock_guard lock(mutex_);
  return sequence_;
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
  return moved ? Turn::moved : Turn::waiting;
}

void Communicator::check_neglected() {
  handle_events(0);
  check_deadlines();
  tend_connections(Clock::now());
  check_leavers();
}

bool Communicator::prepare_sleep(Sleep& sleep) {
  if (!take_baton_nobody_waits_for()) return false;
  // Before the flag is up: what rings for this sleep must not be cleared here.
  check_neglected();
  announce_sleep(sleep);
  sleep.watch(epoll_.get());
  sleep.limit(Clock::now() + std::chrono::milliseconds(longest_sleep_ms()));
  bool stay_awake = progress_or_fail(true) || !work_left();
  drop_baton();
  return !stay_awake;
}

}  // namespace hccl
