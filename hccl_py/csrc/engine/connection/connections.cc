#include "engine/connection/connections.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hccl {

namespace {

using std::chrono::milliseconds;

// The connections of a process that ends close one after the other.
constexpr auto closing_time = milliseconds(300);
constexpr auto closing_period = milliseconds(2);

}  // namespace

Connections::Connections(int world_size, std::vector<int> local_ranks, double path_timeout_s,
                         FailureState& state)
    : local_ranks_(std::move(local_ranks)),
      path_timeout_s_(path_timeout_s),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      shapes_(static_cast<size_t>(world_size)),
      peers_(static_cast<size_t>(world_size)),
      state_(state),
      repair_event_(new_event()) {}

void Connections::watch(int fd, uint64_t tag, uint32_t events) {
  // Edge-triggered: unrequested bytes must not keep a sleeper awake. Before it sleeps, a driver has
  // found every needed lane empty, so the next arrival is an edge.
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = tag;
  int failed = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  // A queue pair's thread may have closed the connection, which its lock reveals; the number may
  // belong to a later connection.
  if (failed && errno == EEXIST) failed = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  if (failed && errno != EBADF) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Connections::add(int peer, StreamsByPath controls) {
  peers_.at(static_cast<size_t>(peer)).link = std::make_unique<ControlLink>(std::move(controls));
  ControlLink& link = *at(peer).link;
  for (size_t path = 0; path < link.num_paths(); ++path) watch_connection(peer, 0, link.fd(path));
  if (is_local(peer)) return watch_process(peer);
  link.watch_paths(path_timeout_s_);
  shapes_.at(static_cast<size_t>(peer)).num_paths = static_cast<int>(link.num_paths());
  has_remote_ = true;
}

void Connections::watch_process(int rank) {
  pid_t process = at(rank).link->process();
  if (process != 0) at(rank).process = open_process(process);
  if (at(rank).process) watch(at(rank).process->get(), rank, process_index, EPOLLIN);
}

void Connections::watch_lane(Lane& lane) {
  std::vector<int> descriptors = lane.descriptors();
  for (int fd : descriptors) {
    // Otherwise it broke before this rank had all connections.
    if (fd >= 0) watch(fd, bell_tag, stream_events);
  }
  if (!descriptors.empty()) watched_lanes_.push_back(&lane);
}

void Connections::add_tcp_lanes(int peer, std::vector<TcpLane*> lanes) {
  for (TcpLane* lane : lanes) {
    for (size_t path = 0; path < lane->num_paths(); ++path) {
      if (int fd = lane->fd(path); fd >= 0) watch_connection(peer, 1 + lane->index(), fd);
      records_.push_back(lane->statistics(path));
    }
    tcp_lanes_.push_back(lane);
  }
  shapes_.at(static_cast<size_t>(peer)).num_lanes = static_cast<int>(lanes.size());
  at(peer).lanes.assign(lanes.begin(), lanes.end());
}

void Connections::add_locked_lanes(int peer, std::vector<std::unique_ptr<ReplaceableLane>> lanes) {
  shapes_.at(static_cast<size_t>(peer)).num_lanes = static_cast<int>(lanes.size());
  for (auto& lane : lanes) {
    at(peer).lanes.push_back(lane.get());
    at(peer).locked_lanes.push_back({std::move(lane)});
  }
}

bool Connections::is_local(int rank) const {
  return std::find(local_ranks_.begin(), local_ranks_.end(), rank) != local_ranks_.end();
}

bool Connections::handle_events(int timeout_ms) {
  epoll_event events[32];
  int num_events = epoll_wait(epoll_.get(), events, 32, timeout_ms);
  bool whole = num_events >= 0 || errno != EINTR;
  for (int i = 0; i < num_events; ++i) {
    uint64_t tag = events[i].data.u64;
    if (tag == bell_tag) continue;
    int rank = static_cast<int>(tag & rank_mask);
    size_t index = tag >> rank_bits;
    if (index == 0) {
      read(rank);
    } else if (index == process_index) {
      process_ended(rank);
    } else if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
      at(rank).lanes.at(index - 1)->poll();
      if (num_unsettled_ > 0) next_check_ = {};
    }
  }
  return whole;
}

void Connections::read(int rank) {
  at(rank).link->receive();
  follow(rank);
}

// After a link was read, or its connections ended.
void Connections::follow(int rank) {
  Peer& peer = at(rank);
  ControlLink& link = *peer.link;
  if (!is_local(rank)) {
    follow_paths(rank);
  } else if (link.is_cut() && link.state() == ControlLink::State::open) {
    link.declare_lost();
  }
  if (link.state() == ControlLink::State::open || peer.state.has_ended()) return;
  bool has_left = link.state() == ControlLink::State::left;
  if (has_left && is_local(rank)) local_leavers_.push_back(rank);
  if (has_left && awaits_lanes(peer)) return note_end(rank, PeerState::left_early, Cause::left);
  end_lanes(rank);
  if (has_left) return note_end(rank, PeerState::left, Cause::left);
  if (!is_local(rank)) return note_end(rank, PeerState::lost, Cause::lost);
  if (!peer.process) return note_end(rank, PeerState::lost, Cause::died);
  if (change(peer, PeerState::link_closed)) settle(rank, Clock::now());
}

// The data connections so far: a bit for each, shared from the 65th on.
uint64_t Connections::made(const Peer& peer) {
  uint64_t bits = 0;
  size_t bit = 0;
  for (const ReplaceableLane* lane : peer.lanes) {
    for (size_t path = 0; path < lane->num_paths(); ++path, ++bit) {
      if (lane->generation(path) > 0) bits |= uint64_t{1} << bit % 64;
    }
  }
  return bits;
}

bool Connections::awaits_lanes(const Peer& peer) { return (peer.link->made() & ~made(peer)) != 0; }

// No connection is made or replaced any more.
void Connections::end_lanes(int rank) {
  for (ReplaceableLane* lane : at(rank).lanes) lane->peer_has_ended();
  for (Lane* lane : watched_lanes_) {
    if (lane->peer() == rank) lane->peer_has_ended();
  }
}

// Reads the last messages of an ended process from all connections that are still open.
void Connections::process_ended(int rank) {
  Peer& peer = at(rank);
  if (!peer.process) return;
  if (!peer.state.has_ended()) read(rank);
  std::optional<ProcessEnd> end = end_of_process(peer.link->process(), *peer.process);
  peer.process.reset();
  note_end(rank, PeerState::lost, Cause::died, end.value_or(ProcessEnd{}));
}

std::optional<PeerState::Action> Connections::change(Peer& peer, PeerState::Event event) {
  std::optional<PeerState::Action> action = peer.state.on(event, Clock::now());
  if (action) count_unsettled();
  return action;
}

// Checks a process that may be ending, and the peer's deadline.
void Connections::settle(int rank, Deadline now) {
  Peer& peer = at(rank);
  if (peer.process && peer.link->state() == ControlLink::State::lost) {
    std::optional<ProcessEnd> end = end_of_process(peer.link->process(), *peer.process);
    if (end) return note_end(rank, PeerState::lost, Cause::died, *end);
    if (now >= peer.state.deadline()) note_end(rank, PeerState::time, Cause::unreachable);
  } else if (now >= peer.state.deadline()) {
    if (change(peer, PeerState::time) == PeerState::end_lanes) return end_lanes(rank);
    fail_by_paths(rank, std::exchange(peer.error, {}));
  }
}

void Connections::note_end(int rank, PeerState::Event event, Cause cause, const ProcessEnd& how) {
  Peer& peer = at(rank);
  std::optional<PeerState::Action> action = change(peer, event);
  if (!action) return;
  Failure failure = observed(cause, rank);
  failure.last_sequence = peer.link->last_sequence();
  failure.goes_on = peer.link->goes_on();
  failure.exit_code = how.exit_code;
  failure.signal = how.signal;
  {
    std::lock_guard lock(mutex_);
    ended_.push_back(std::move(failure));
  }
  state_.notify();
  if (action == PeerState::report_end) fail_by_end(rank, peer.error);
}

void Connections::fail_by_end(int rank, const std::string& error) {
  Failure failure = observed(Cause::unreachable, rank);
  for (Failure& ended : ended_peers()) {
    if (ended.rank == rank) failure = std::move(ended);
  }
  failure.process_lives = failure.cause == Cause::unreachable;
  failure.error = failure.cause == Cause::left ? at(rank).link->error() : error;
  failures_.push_back(std::move(failure));
}

void Connections::fail_by_paths(int rank, const std::string& error) {
  Failure failure = observed(Cause::unreachable, rank);
  failure.error = error;
  failure.paths = troubles_with({rank});
  failures_.push_back(std::move(failure));
}

void Connections::suspect(int rank, const std::string& error) {
  Peer& peer = at(rank);
  if (peer.state.has_ended()) return fail_by_end(rank, error);
  if (!change(peer, PeerState::lane_broke)) return;
  peer.error = error;
  read(rank);  // the explanation may already be there
}

std::vector<Failure> Connections::ended_peers() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void Connections::tend(Deadline now) {
  if (num_unsettled_ > 0 && now >= next_check_) {
    next_check_ = now + closing_period;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (!at(rank).link) continue;
      settle(rank, now);
      if (is_closing(at(rank), now)) follow(rank);
    }
    count_unsettled();
  }
  tend_paths(now);
  tend_lanes(now);
}

bool Connections::is_closing(const Peer& peer, Deadline now) {
  return peer.state.state() == PeerState::cut && peer.link->is_closed() &&
         now - peer.state.since() < closing_time;
}

void Connections::count_unsettled() {
  num_suspects_ = num_unsettled_ = 0;
  Deadline now = Clock::now();
  for (const Peer& peer : peers_) {
    if (!peer.link) continue;
    num_suspects_ += peer.state.holds_traffic();
    num_unsettled_ += peer.state.is_unsettled() || is_closing(peer, now);
  }
}

void Connections::prepare_sleep(Sleep& sleep) {
  for (Lane* lane : watched_lanes_) lane->prepare_sleep(sleep);
}

bool Connections::owes() const {
  auto lane_owes = [](const auto* lane) { return lane->owes(); };
  return std::ranges::any_of(watched_lanes_, lane_owes) ||
         std::ranges::any_of(
             peers_, [&](const Peer& peer) { return std::ranges::any_of(peer.lanes, lane_owes); });
}

void Connections::tend_lanes(Deadline now) {
  // While calls are held, nothing more is sent from the callers' buffers.
  if (now < next_lane_tend_ || state_.phase() != FailureState::Phase::none) return;
  next_lane_tend_ = now + milliseconds(longest_sleep_ms);
  for (Lane* lane : watched_lanes_) lane->tend(now);
}

bool Connections::deliver() {
  bool all = true;
  for (Lane* lane : watched_lanes_) {
    lane->tend(Clock::now());
    all &= lane->delivered();
  }
  for (TcpLane* lane : tcp_lanes_) {
    if (lane->delivered()) continue;
    all = false;
    lane->poll();
    lane->tend(Clock::now());
  }
  return all;
}

void Connections::leave(uint64_t sequence, const std::string& error, bool goes_on) {
  for (Peer& peer : peers_) {
    if (peer.link && peer.link->state() == ControlLink::State::open) {
      peer.link->say_goodbye(sequence, made(peer), error, goes_on);
    }
  }
  close();
}

void Connections::close() {
  watched_lanes_.clear();
  tcp_lanes_.clear();
  peers_.clear();
}

}  // namespace hccl
