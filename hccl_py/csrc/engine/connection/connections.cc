#include "engine/connection/connections.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hccl {

namespace {

using std::chrono::milliseconds;

// A lane may break before its control link says why.
constexpr auto explanation_time = milliseconds(300);
// From the end of a process's connections on this host until the process itself has ended.
constexpr auto process_ending_time = milliseconds(100);
// The connections of a process that ends close one after the other.
constexpr auto closing_time = milliseconds(300);
constexpr auto closing_period = milliseconds(2);
// A goodbye may come after the end of the data connections.
constexpr auto goodbye_time = milliseconds(20);
// A peer that no connection reached for so long is unreachable, whatever the calls' deadlines are.
constexpr auto unreachable_time = std::chrono::seconds(45);

}  // namespace

Connections::Connections(int world_size, std::vector<int> local_ranks, double path_timeout_s)
    : local_ranks_(std::move(local_ranks)),
      path_timeout_s_(path_timeout_s),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      peers_(static_cast<size_t>(world_size)) {}

// ---------------------------------------------------------------- connecting

void Connections::watch(int fd, uint64_t tag, uint32_t events) {
  // Edge-triggered: bytes that no call has asked for must not keep a sleeper awake. Before it
  // sleeps, a driver has found every lane it needs empty, so whatever comes next is an edge.
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Connections::watch_link(int rank, size_t path) {
  watch(at(rank).link->fd(path), static_cast<uint64_t>(rank), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

void Connections::add(int peer, StreamsByPath controls) {
  peers_.at(static_cast<size_t>(peer)).link =
      std::make_unique<ControlLink>(peer, std::move(controls));
  for (size_t path = 0; path < at(peer).link->num_paths(); ++path) watch_link(peer, path);
}

void Connections::watch_lane(Lane& lane) {
  std::vector<int> descriptors = lane.descriptors();
  for (int fd : descriptors) watch(fd, bell_tag, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  if (!descriptors.empty()) watched_lanes_.push_back(&lane);
}

void Connections::add_tcp_lanes(int peer, std::vector<TcpLane*> lanes) {
  at(peer).link->watch_paths(path_timeout_s_);
  for (TcpLane* lane : lanes) {
    for (size_t path = 0; path < lane->num_paths(); ++path) {
      watch(lane->fd(path), lane_tag + tcp_lanes_.size(), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    }
    tcp_lanes_.push_back(lane);
    const auto& records = lane->path_statistics();
    records_.insert(records_.end(), records.begin(), records.end());
  }
  num_replaceable_.resize(peers_.size());
  num_replaceable_[static_cast<size_t>(peer)] = {lanes.size() + 1, lanes.at(0)->num_paths()};
  at(peer).lanes = std::move(lanes);
}

bool Connections::is_local(int rank) const {
  return std::find(local_ranks_.begin(), local_ranks_.end(), rank) != local_ranks_.end();
}

// ---------------------------------------------------------------- events

bool Connections::handle_events(int timeout_ms) {
  epoll_event events[32];
  int num_events = epoll_wait(epoll_.get(), events, 32, timeout_ms);
  bool whole = num_events >= 0 || errno != EINTR;
  for (int i = 0; i < num_events; ++i) {
    uint64_t tag = events[i].data.u64;
    if (tag < peers_.size()) {
      read(static_cast<int>(tag));
    } else if (tag == process_tag) {
      next_check_ = {};
    } else if (tag != bell_tag && (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
      tcp_lanes_.at(tag - lane_tag)->poll();
      if (num_unsettled_ > 0) next_check_ = {};
    }
  }
  return whole;
}

void Connections::read(int rank) {
  at(rank).link->receive();
  follow(rank);
}

// After something was read from a link, or its connections ended.
void Connections::follow(int rank) {
  Peer& peer = at(rank);
  ControlLink& link = *peer.link;
  if (!peer.lanes.empty()) {
    follow_paths(rank);
  } else if (link.is_cut() && link.state() == ControlLink::State::open) {
    link.declare_lost();
  }
  if (link.state() == ControlLink::State::open || peer.has_ended) return;
  for (TcpLane* lane : peer.lanes) lane->peer_has_ended();
  end_of_link(rank);
}

void Connections::follow_paths(int rank) {
  Peer& peer = at(rank);
  ControlLink& link = *peer.link;
  drop_paths(peer);
  for (size_t path : link.take_broken()) {
    if (link.state() != ControlLink::State::open) break;
    link.report(PathDown{0, path, link.generation(path)});
    suspect_paths_.push_back({{rank, 0, static_cast<int>(path)}, Clock::now() + goodbye_time});
  }
  if (link.state() != ControlLink::State::open || !link.is_cut()) return;
  if (peer.cut_at == Deadline{}) {
    peer.cut_at = Clock::now();
    next_check_ = {};
    count_unsettled();
  }
  if (link.is_closed() && has_closed_all(peer)) link.declare_lost();
}

// A connection that the peer has given up is closed here as well, unless it was replaced meanwhile.
void Connections::drop_paths(Peer& peer) {
  ControlLink& link = *peer.link;
  for (const PathDown& down : link.take_paths_down()) {
    if (down.path >= link.num_paths()) continue;
    if (down.index == 0) {
      if (link.generation(down.path) <= down.generation) link.lose(down.path, false);
      continue;
    }
    size_t lane = static_cast<size_t>(down.index) - 1;
    if (lane >= peer.lanes.size() || peer.lanes[lane]->generation(down.path) > down.generation) {
      continue;
    }
    peer.lanes[lane]->lose(down.path, "the peer gave it up");
  }
}

// ---------------------------------------------------------------- how a peer ends

// The link says that the peer has left, or is lost.
void Connections::end_of_link(int rank) {
  Peer& peer = at(rank);
  if (peer.link->state() == ControlLink::State::left) {
    if (is_local(rank)) local_leavers_.push_back(rank);
    return note_end(rank, Cause::left);
  }
  if (!is_local(rank)) return note_end(rank, Cause::lost);
  if (peer.process) return;
  pid_t process = peer.link->process();
  if (process != 0) {
    peer.process.emplace(open_process(process));
    if (peer.process->get() >= 0) {
      peer.lives_at = Clock::now() + process_ending_time;
      watch(peer.process->get(), process_tag, EPOLLIN);
      count_unsettled();
      return settle_process(rank, Clock::now());
    }
    peer.process.reset();
  }
  note_end(rank, Cause::died);
}

void Connections::settle_process(int rank, Deadline now) {
  Peer& peer = at(rank);
  if (!peer.process) return;
  bool ended = has_ended(*peer.process);
  if (!ended && now < peer.lives_at) return;
  ProcessEnd how;
  if (ended) how = end_of_process(peer.link->process(), *peer.process);
  peer.process.reset();
  note_end(rank, ended ? Cause::died : Cause::unreachable, how);
}

void Connections::note_end(int rank, Cause cause, const ProcessEnd& how) {
  Peer& peer = at(rank);
  if (peer.has_ended) return;
  peer.has_ended = true;
  bool was_suspect = peer.explained_until.has_value();
  peer.explained_until.reset();
  peer.cut_at = {};
  count_unsettled();
  {
    std::lock_guard lock(ended_mutex_);
    ended_.push_back({rank, cause, peer.link->last_sequence(), how.exit_code, how.signal});
  }
  has_ended_peers_ = true;
  if (cause != Cause::left || was_suspect) fail_by_end(rank, peer.error);
}

void Connections::fail_by_end(int rank, const std::string& error) {
  Failure failure = observed(Cause::unreachable, rank);
  for (const EndedPeer& ended : ended_peers()) {
    if (ended.rank != rank) continue;
    failure.cause = ended.cause;
    failure.last_sequence = ended.last_sequence;
    failure.exit_code = ended.exit_code;
    failure.signal = ended.signal;
  }
  failure.process_lives = failure.cause == Cause::unreachable;
  failure.error = failure.cause == Cause::left ? at(rank).link->error() : error;
  failures_.push_back(std::move(failure));
}

void Connections::suspect(int rank, const std::string& error) {
  Peer& peer = at(rank);
  if (peer.has_ended) return fail_by_end(rank, error);
  if (peer.explained_until) return;
  peer.explained_until = Clock::now() + explanation_time;
  peer.error = error;
  count_unsettled();
  read(rank);  // the explanation may be there already
}

// A lane broke, and its control link still stands, though it had time to say why.
void Connections::settle(int rank, Deadline now) {
  Peer& peer = at(rank);
  if (!peer.explained_until || peer.process || now < *peer.explained_until) return;
  peer.explained_until.reset();
  count_unsettled();
  Failure failure = observed(Cause::unreachable, rank);
  failure.error = peer.error;
  failure.paths = troubles_with({rank});
  failures_.push_back(std::move(failure));
}

std::optional<Failure> Connections::take_failure() {
  if (failures_.empty()) return std::nullopt;
  Failure first = std::move(failures_.front());
  failures_.erase(failures_.begin());
  return first;
}

std::vector<EndedPeer> Connections::ended_peers() const {
  std::lock_guard lock(ended_mutex_);
  return ended_;
}

// ---------------------------------------------------------------- connections that break

bool Connections::path_lost(const TcpLane& lane, size_t path) {
  ControlLink& link = *at(lane.peer()).link;
  if (link.state() != ControlLink::State::open) return false;
  int index = 1 + lane.index();
  // Neither end of a cut connection receives anything, so each reports it to the other.
  link.report(PathDown{index, path, lane.generation(path)});
  suspect_paths_.push_back(
      {{lane.peer(), index, static_cast<int>(path)}, Clock::now() + goodbye_time});
  return true;
}

// A rank that leaves says goodbye before it closes, but on another connection. A broken connection is
// replaced if no goodbye came after goodbye_time.
void Connections::report_suspects(Deadline now) {
  std::erase_if(suspect_paths_, [&](const SuspectPath& suspect) {
    bool is_open = at(suspect.path.peer).link->state() == ControlLink::State::open;
    if (is_open && now < suspect.until) return false;
    if (is_open) reconnection_.report(suspect.path);
    return true;
  });
}

void Connections::check_path(const BrokenPath& path) const {
  auto is_below = [](int number, size_t limit) {
    return number >= 0 && static_cast<size_t>(number) < limit;
  };
  size_t peer = static_cast<size_t>(path.peer);
  if (!is_below(path.peer, num_replaceable_.size()) ||
      !is_below(path.index, num_replaceable_[peer].first) ||
      !is_below(path.path, num_replaceable_[peer].second)) {
    throw std::invalid_argument("no such connection to replace");
  }
}

void Connections::use_replacements(Traffic traffic) {
  for (Replacement& replacement : reconnection_.take_offers()) use(replacement, traffic);
}

void Connections::use(Replacement& replacement, Traffic traffic) {
  int rank = replacement.path.peer;
  size_t path = static_cast<size_t>(replacement.path.path);
  Peer& peer = at(rank);
  if (traffic == Traffic::ended) return replacement.connection->close();
  if (replacement.path.index == 0) {
    peer.link->adopt(path, std::move(replacement.connection));
    peer.cut_at = {};
    count_unsettled();
    if (peer.link->up(path)) watch_link(rank, path);
    return;
  }
  if (traffic == Traffic::held) return replacement.connection->close();  // it would send again
  TcpLane* lane = peer.lanes[static_cast<size_t>(replacement.path.index) - 1];
  lane->adopt(path, std::move(replacement.connection));
  auto number = std::find(tcp_lanes_.begin(), tcp_lanes_.end(), lane) - tcp_lanes_.begin();
  if (lane->fd(path) < 0) return;
  watch(lane->fd(path), lane_tag + static_cast<uint64_t>(number),
        EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

// ---------------------------------------------------------------- in turn

void Connections::tend(Deadline now, Traffic traffic) {
  if (num_unsettled_ > 0 && now >= next_check_) {
    next_check_ = now + closing_period;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (!at(rank).link) continue;
      settle_process(rank, now);
      settle(rank, now);
      if (is_closing(at(rank), now)) follow(rank);
    }
    count_unsettled();
  }
  if (traffic == Traffic::ended || tcp_lanes_.empty() || now < next_tend_) return;
  next_tend_ = now + milliseconds(longest_sleep_ms);
  // While calls are held, nothing more is sent from the callers' buffers.
  for (TcpLane* lane : tcp_lanes_) {
    if (traffic == Traffic::flows) lane->tend(now);
  }
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!at(rank).lanes.empty()) check_cut(rank, now);
  }
  if (suspect_paths_.empty()) return;
  report_suspects(now);
  if (!suspect_paths_.empty()) next_tend_ = now + goodbye_time;
}

void Connections::check_cut(int rank, Deadline now) {
  Peer& peer = at(rank);
  ControlLink& link = *peer.link;
  if (link.has_broken()) read(rank);
  if (link.state() != ControlLink::State::open || peer.cut_at == Deadline{}) return;
  // What a dying process had sent may have kept its data connections open until now.
  if (link.is_closed() && has_closed_all(peer)) return follow(rank);
  if (now - peer.cut_at < unreachable_time) return;
  peer.cut_at = now;
  Failure failure = observed(Cause::unreachable, rank);
  failure.paths = troubles_with({rank});
  failures_.push_back(std::move(failure));
}

// A process that ends closes all its connections. A network path that breaks, or one connection that
// is reset, leaves others open.
bool Connections::has_closed_all(const Peer& peer) {
  auto hung_up = [](const TcpLane* lane) { return lane->hung_up(); };
  auto by_peer = [](const TcpLane* lane) { return lane->closed_by_peer(); };
  return std::all_of(peer.lanes.begin(), peer.lanes.end(), hung_up) &&
         std::any_of(peer.lanes.begin(), peer.lanes.end(), by_peer);
}

bool Connections::is_closing(const Peer& peer, Deadline now) {
  return !peer.has_ended && peer.cut_at != Deadline{} && peer.link->is_closed() &&
         now - peer.cut_at < closing_time;
}

void Connections::count_unsettled() {
  num_suspects_ = num_unsettled_ = 0;
  Deadline now = Clock::now();
  for (const Peer& peer : peers_) {
    if (!peer.link) continue;
    bool is_suspect = peer.explained_until.has_value();
    num_suspects_ += is_suspect;
    num_unsettled_ += is_suspect || peer.process || is_closing(peer, now);
  }
}

void Connections::prepare_sleep(Sleep& sleep) {
  for (Lane* lane : watched_lanes_) lane->prepare_sleep(sleep);
}

std::vector<PathTrouble> Connections::troubles_with(const std::vector<int>& ranks) const {
  std::vector<PathTrouble> found;
  for (int rank : ranks) {
    if (rank < 0 || !at(rank).link) continue;
    // A rank that only receives has sent nothing that could stay unanswered; over the control link
    // probes go.
    const ControlLink& link = *at(rank).link;
    std::vector<double> unanswered;
    for (size_t path = 0; path < link.num_paths(); ++path) {
      unanswered.push_back(unanswered_s(link.fd(path)));
    }
    for (const TcpLane* lane : at(rank).lanes) {
      std::vector<PathTrouble> troubles = lane->troubles(unanswered);
      if (troubles.empty()) continue;
      found.insert(found.end(), troubles.begin(), troubles.end());
      break;
    }
  }
  return found;
}

// ---------------------------------------------------------------- the end

bool Connections::owes() const {
  return std::any_of(tcp_lanes_.begin(), tcp_lanes_.end(),
                     [](const TcpLane* lane) { return lane->owes(); });
}

bool Connections::deliver() {
  bool all = true;
  for (TcpLane* lane : tcp_lanes_) {
    if (lane->delivered()) continue;
    all = false;
    lane->poll();
    lane->tend(Clock::now());
  }
  return all;
}

void Connections::say_goodbye(uint64_t sequence, const std::string& error) {
  for (Peer& peer : peers_) {
    if (peer.link && peer.link->state() == ControlLink::State::open) {
      peer.link->say_goodbye(sequence, error);
    }
  }
}

void Connections::close() {
  watched_lanes_.clear();
  tcp_lanes_.clear();
  peers_.clear();
}

}  // namespace hccl
