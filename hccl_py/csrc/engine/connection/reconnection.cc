// Connections between nodes that lanes need or that break: whether their peer has left, the request
// to Python, and its result.
#include "engine/connection/connections.h"

#include <algorithm>
#include <stdexcept>

namespace hccl {

namespace {

// A goodbye may arrive after the end of the data connections.
constexpr auto goodbye_time = std::chrono::milliseconds(20);
// A host without the process and its addresses, as after the end of a container, refuses nothing.
constexpr auto answer_time = std::chrono::seconds(5);

}  // namespace

void Connections::follow_paths(int rank) {
  Peer& peer = at(rank);
  ControlLink& link = *peer.link;
  drop_paths(peer);
  for (size_t path : link.take_broken()) {
    if (link.state() != ControlLink::State::open) break;
    link.report_down(0, path, link.generation(path));
    // Without a lane no other connection can carry a goodbye.
    Deadline until = Clock::now();
    if (made(peer) != 0) until += goodbye_time;
    suspect_paths_.push_back({{rank, 0, static_cast<int>(path)}, until});
    next_tend_ = std::min(next_tend_, until);
  }
  if (link.state() != ControlLink::State::open || !link.is_cut()) return;
  if (change(peer, PeerState::link_cut)) next_check_ = {};
  if (is_gone(peer)) link.declare_lost();
}

// A process that ends closes all connections, and no process listens at its address. A network that
// resets all of them may also refuse new ones, but closes none. The kernel resets connections with
// unread data of a killed process: on one host, without a network in between, the refusal alone
// shows that the process has ended.
bool Connections::is_gone(const Peer& peer) {
  auto is_open = [](auto* lane) { return lane->is_open(); };
  auto is_closed = [](auto* lane) { return lane->closed_by_peer(); };
  if (!peer.link->is_cut() || std::ranges::any_of(peer.lanes, is_open)) return false;
  if (peer.link->refuses() && peer.link->stays_on_host()) return true;
  if (!peer.link->is_closed() && std::ranges::none_of(peer.lanes, is_closed)) return false;
  return peer.link->refuses() ||
         (peer.state.state() == PeerState::cut && Clock::now() - peer.state.since() >= answer_time);
}

// Closes connections that the peer has given up, unless they were replaced.
void Connections::drop_paths(Peer& peer) {
  ControlLink& link = *peer.link;
  for (const ControlMessage& down : link.take_paths_down()) {
    if (down.path >= link.num_paths()) continue;
    if (down.index == 0) {
      if (link.generation(down.path) <= down.generation) link.lose(down.path);
      continue;
    }
    size_t lane = static_cast<size_t>(down.index) - 1;
    if (lane >= peer.lanes.size() || peer.lanes[lane]->generation(down.path) > down.generation) {
      continue;
    }
    peer.lanes[lane]->lose(down.path, "the peer gave it up");
  }
}

void Connections::lane_wanted(const TcpLane& lane) {
  if (at(lane.peer()).link->state() != ControlLink::State::open) return;
  {
    std::lock_guard lock(mutex_);
    for (size_t path = 0; path < lane.num_paths(); ++path) {
      wanted_.push_back({lane.peer(), 1 + lane.index(), static_cast<int>(path)});
    }
  }
  signal_event(repair_event_);
}

bool Connections::path_lost(const TcpLane& lane, size_t path) {
  if (at(lane.peer()).link->state() != ControlLink::State::open) return false;
  if (std::string why = lane.why_fruitless(); !why.empty()) fail_by_paths(lane.peer(), why);
  suspect_path({lane.peer(), 1 + lane.index(), static_cast<int>(path)}, lane.generation(path));
  return true;
}

// Neither end of a cut connection receives anything, so each reports it to the other.
void Connections::suspect_path(const BrokenPath& path, uint64_t generation) {
  ControlLink& link = *at(path.peer).link;
  if (link.state() != ControlLink::State::open) return;
  link.report_down(path.index, static_cast<size_t>(path.path), generation);
  suspect_paths_.push_back({path, Clock::now() + goodbye_time});
}

// Finds lanes that broke under their own lock.
void Connections::look_at_locked_lanes(int rank) {
  int index = 0;
  for (LockedLane& locked : at(rank).locked_lanes) {
    ++index;
    locked.lane->poll();
    uint64_t generation = locked.lane->generation(0);
    if (locked.lane->fd(0) >= 0 || generation <= locked.num_lost) continue;
    locked.num_lost = generation;
    suspect_path({rank, index, 0}, generation);
  }
}

// A rank that leaves says goodbye before it closes, but on another connection. A broken connection
// is replaced if no goodbye came after goodbye_time.
void Connections::report_suspects(Deadline now) {
  std::erase_if(suspect_paths_, [&](const SuspectPath& suspect) {
    bool is_open = at(suspect.path.peer).link->state() == ControlLink::State::open;
    if (is_open && now < suspect.until) return false;
    if (!is_open) return true;
    {
      std::lock_guard lock(mutex_);
      broken_.push_back(suspect.path);
    }
    signal_event(repair_event_);
    return true;
  });
}

std::vector<BrokenPath> Connections::take_broken() {
  clear_event(repair_event_);
  std::lock_guard lock(mutex_);
  return std::exchange(broken_, {});
}

std::vector<BrokenPath> Connections::take_wanted() {
  std::lock_guard lock(mutex_);
  return std::exchange(wanted_, {});
}

void Connections::offer(const BrokenPath& path, const std::shared_ptr<Stream>& connection) {
  const Shape& shape = shapes_.at(static_cast<size_t>(path.peer));
  if (path.index < 0 || path.index > shape.num_lanes || path.path < 0 ||
      path.path >= shape.num_paths) {
    throw std::invalid_argument("no such connection to replace");
  }
  offer([this, path, connection] { use(path, connection); });
}

void Connections::note_refusal(int peer) {
  offer([this, peer] {
    if (at(peer).link->note_refusal()) follow(peer);
  });
}

void Connections::note_unreachable(int peer, const std::string& why) {
  offer([this, peer, why] {
    if (at(peer).link->state() == ControlLink::State::open) fail_by_paths(peer, why);
  });
}

void Connections::offer(std::function<void()> use) {
  std::lock_guard lock(mutex_);
  offers_.push_back(std::move(use));
  num_offers_.fetch_add(1, std::memory_order_seq_cst);
}

void Connections::note_device_change(int peer, const std::string& device, std::string text) {
  if (at(peer).link->state() != ControlLink::State::open) return;
  std::lock_guard lock(mutex_);
  if (failed_devices_.emplace(peer, device).second) device_changes_.push_back(std::move(text));
}

std::vector<std::string> Connections::take_device_changes() {
  std::lock_guard lock(mutex_);
  return std::exchange(device_changes_, {});
}

void Connections::use_offers() {
  std::unique_lock lock(mutex_);
  num_offers_.store(0, std::memory_order_seq_cst);
  auto offers = std::exchange(offers_, {});
  lock.unlock();
  for (const auto& use : offers) use();
}

void Connections::use(const BrokenPath& broken, std::shared_ptr<Stream> connection) {
  int rank = broken.peer;
  size_t path = static_cast<size_t>(broken.path);
  Peer& peer = at(rank);
  // While calls are held, a lane would send again from the callers' buffers.
  if (broken.index != 0 && state_.phase() != FailureState::Phase::none) return connection->close();
  int fd = -1;
  if (broken.index == 0) {
    peer.link->adopt(path, std::move(connection));
    change(peer, PeerState::link_restored);
    fd = peer.link->fd(path);
  } else {
    ReplaceableLane* lane = peer.lanes[static_cast<size_t>(broken.index) - 1];
    lane->adopt(path, std::move(connection));
    fd = lane->fd(path);
    if (!awaits_lanes(peer) && change(peer, PeerState::lanes_came)) end_lanes(rank);
  }
  if (fd >= 0) watch_connection(rank, broken.index, fd);
}

void Connections::tend_paths(Deadline now) {
  FailureState::Phase phase = state_.phase();
  if (!has_remote_ || now < next_tend_) return;
  next_tend_ = now + std::chrono::milliseconds(longest_sleep_ms);
  // While calls are held, nothing more is sent from the callers' buffers.
  for (TcpLane* lane : tcp_lanes_) {
    if (phase == FailureState::Phase::none) lane->tend(now);
  }
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!at(rank).link || is_local(rank)) continue;
    look_at_locked_lanes(rank);
    check_cut(rank, now);
  }
  if (suspect_paths_.empty()) return;
  report_suspects(now);
  if (!suspect_paths_.empty()) next_tend_ = now + goodbye_time;
}

void Connections::check_cut(int rank, Deadline now) {
  if (at(rank).link->has_broken()) read(rank);
  if (!at(rank).link->is_cut()) return;
  follow(rank);  // unread data of a dying process may have kept its data connections open until now
  settle(rank, now);
}

std::vector<PathTrouble> Connections::troubles_with(const std::vector<int>& ranks) const {
  std::vector<PathTrouble> found;
  for (int rank : ranks) {
    if (rank < 0 || !at(rank).link) continue;
    // A rank that only receives has no data that could stay unanswered, but the control link sends
    // probes.
    const ControlLink& link = *at(rank).link;
    std::vector<double> unanswered;
    for (size_t path = 0; path < link.num_paths(); ++path) {
      unanswered.push_back(unanswered_s(link.fd(path)));
    }
    auto note = [&](const auto* lane) {
      std::vector<PathTrouble> troubles = lane->troubles(unanswered);
      found.insert(found.end(), troubles.begin(), troubles.end());
      return !troubles.empty();
    };
    if (std::ranges::any_of(at(rank).lanes, note)) continue;
    std::ranges::any_of(watched_lanes_,
                        [&](const Lane* lane) { return lane->peer() == rank && note(lane); });
  }
  return found;
}

void Connections::measure(CallProgress& progress) const {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = at(rank);
    if (!peer.link || is_local(rank) || peer.state.has_ended()) continue;
    if (peer.link->is_unanswered()) {
      progress.out_of_reach.push_back(rank);
    } else if (peer.link->is_cut()) {
      progress.unlinked.push_back(rank);
    }
  }
}

}  // namespace hccl
