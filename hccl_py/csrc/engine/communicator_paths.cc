// The connections of Communicator to ranks of other nodes: that they break, are replaced, or are gone
// for good with their peer. What drives them stands in communicator_driver.cc.
#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "engine/communicator.h"

namespace hccl {

namespace {

// Everything that matters rings a bell; this bounds how late a signal, a deadline or a cut is seen.
constexpr int tend_period_ms = 100;
// Of streams that cannot ring one.
constexpr int poll_period_ms = 2;
// The connections of a process that dies close one after the other.
constexpr auto dying_time = std::chrono::milliseconds(300);
// How long a goodbye may come after the end of the connections.
constexpr auto goodbye_time = std::chrono::milliseconds(20);
// A peer that no connection reached for so long counts as lost, whatever the calls' deadlines are.
constexpr auto unreachable_time = std::chrono::seconds(45);
// How long the progress thread, or another look, may take to hand the baton on.
constexpr auto turn_of_others = std::chrono::milliseconds(20);
constexpr double longest_delivery_s = 2;

}  // namespace

void Communicator::add_tcp_peer(int peer, TcpConnections connections) {
  size_t rank = static_cast<size_t>(peer);
  size_t num_paths = connections.names.size();
  auto is_complete = [&](const Connections& paths) { return paths.size() == num_paths; };
  if (num_paths == 0 || !is_complete(connections.controls) ||
      !std::all_of(connections.lanes.begin(), connections.lanes.end(), is_complete)) {
    throw std::invalid_argument("a control connection and one per lane on every named path");
  }
  TcpOptions options;
  options.slot_bytes = options_.segment.slot_bytes;
  options.checksum = options_.checksum;
  options.path_timeout_s = options_.path_timeout_s;
  options.names = connections.names;
  options.observer = this;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<TcpLane*> added;
  for (Connections& paths : connections.lanes) {
    auto lane = std::make_unique<TcpLane>(peer, std::move(paths), options, statistics_);
    added.push_back(lane.get());
    lanes.push_back(std::move(lane));
    ++options.lane;
  }
  add_peer(peer, std::move(lanes), std::move(connections.controls));
  links_[rank]->watch_paths(options_.path_timeout_s);
  for (TcpLane* lane : added) {
    for (size_t path = 0; path < num_paths; ++path) {
      watch(lane->fd(path), lane_tag + tcp_lanes_.size());
    }
    tcp_lanes_.push_back(lane);
    records_.insert(records_.end(), lane->path_statistics().begin(),
                    lane->path_statistics().end());
  }
  tcp_peers_[rank].lanes = std::move(added);
  note_announcing();
}

// ---------------------------------------------------------------- what broke

bool Communicator::path_lost(const TcpLane& lane, size_t path) {
  ControlLink& link = *links_[static_cast<size_t>(lane.peer())];
  if (link.state() != ControlLink::State::open) return false;
  int index = 1 + lane.index();
  // The peer cannot always tell: of a cut line neither end hears anything.
  link.report(PathDown{index, path, lane.generation(path)});
  report_broken({lane.peer(), index, static_cast<int>(path)});
  return true;
}

void Communicator::report_broken(const Broken& place) {
  suspects_.push_back({place, Clock::now() + goodbye_time});
}

// A rank that leaves says goodbye before it closes, but on another connection: only what has no such
// explanation after a moment is to be repaired.
void Communicator::report_suspects(Deadline now) {
  std::lock_guard lock(mutex_);
  std::erase_if(suspects_, [&](const Suspect& suspect) {
    ControlLink& link = *links_[static_cast<size_t>(suspect.place.peer)];
    bool is_open = link.state() == ControlLink::State::open;
    if (is_open && now < suspect.until) return false;
    if (is_open) broken_.push_back(suspect.place);
    return true;
  });
  if (broken_.empty()) return;
  signal_event(repair_);
}

std::vector<Broken> Communicator::take_broken() {
  if (try_take_baton()) {
    handle_events(0);
    tend_connections(Clock::now());
    pass_baton();
  }
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(repair_.get(), &count, sizeof count);
  std::lock_guard lock(mutex_);
  std::vector<Broken> taken;
  if (!closed_ && failure_ == nullptr) taken.swap(broken_);
  return taken;
}

// ---------------------------------------------------------------- what replaces it

void Communicator::replace_connection(const Broken& place, std::shared_ptr<Stream> connection) {
  bool wanted;
  {
    std::lock_guard lock(mutex_);
    wanted = !closed_ && failure_ == nullptr;
    if (wanted) {
      check_place(place);
      adoptions_.push_back({place, connection});
      // As for num_incoming_: either the sleeper sees it, or we see the sleeper.
      num_adoptions_.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  // Not under the mutex: a stream of Python's takes its lock.
  if (!wanted) return connection->close();
  drive_once();
}

void Communicator::check_place(const Broken& place) const {
  auto is_below = [](int number, size_t limit) {
    return number >= 0 && static_cast<size_t>(number) < limit;
  };
  if (!is_below(place.peer, tcp_peers_.size()) ||
      !is_below(place.index, tcp_peers_[static_cast<size_t>(place.peer)].lanes.size() + 1) ||
      tcp_peers_[static_cast<size_t>(place.peer)].lanes.empty() ||
      !is_below(place.path, tcp_peers_[static_cast<size_t>(place.peer)].lanes[0]->num_paths())) {
    throw std::invalid_argument("no such connection to replace");
  }
}

void Communicator::adopt_connections() {
  std::vector<Adoption> adoptions;
  bool failed;
  {
    std::lock_guard lock(mutex_);
    adoptions.swap(adoptions_);
    num_adoptions_.store(0, std::memory_order_seq_cst);
    failed = failure_ != nullptr;
  }
  for (Adoption& adoption : adoptions) {
    failed ? adoption.connection->close() : adopt(adoption);
  }
  note_announcing();
}

void Communicator::adopt(Adoption& adoption) {
  size_t rank = static_cast<size_t>(adoption.place.peer);
  size_t path = static_cast<size_t>(adoption.place.path);
  ControlLink& link = *links_[rank];
  TcpPeer& peer = tcp_peers_[rank];
  if (adoption.place.index == 0) {
    link.adopt(path, std::move(adoption.connection));
    peer.cut_at = {};
    if (link.up(path)) watch(link.fd(path), rank);
    return;
  }
  if (diagnosis_deadline_) return adoption.connection->close();  // it would send again
  size_t lane = static_cast<size_t>(adoption.place.index) - 1;
  peer.lanes[lane]->adopt(path, std::move(adoption.connection));
  int fd = peer.lanes[lane]->fd(path);
  auto place = std::find(tcp_lanes_.begin(), tcp_lanes_.end(), peer.lanes[lane]);
  if (fd >= 0) watch(fd, lane_tag + static_cast<uint64_t>(place - tcp_lanes_.begin()));
}

// ---------------------------------------------------------------- looking after them

void Communicator::note_announcing() {
  bool all = std::all_of(tcp_lanes_.begin(), tcp_lanes_.end(),
                         [](const TcpLane* lane) { return lane->announces(); }) &&
             std::all_of(links_.begin(), links_.end(),
                         [](const auto& link) { return !link || link->announces(); });
  announces_.store(all, std::memory_order_relaxed);
}

int Communicator::longest_sleep_ms() const {
  return announces_.load(std::memory_order_relaxed) ? tend_period_ms : poll_period_ms;
}

void Communicator::tend_connections(Deadline now) {
  if (tcp_lanes_.empty() || now < next_tend_ || failure()) return;
  next_tend_ = now + std::chrono::milliseconds(longest_sleep_ms());
  // While a failure waits for its diagnosis, nothing more is sent from the callers' buffers.
  for (TcpLane* lane : tcp_lanes_) {
    if (!diagnosis_deadline_) lane->tend(now);
  }
  for (size_t rank = 0; rank < tcp_peers_.size() && !failure(); ++rank) {
    if (!tcp_peers_[rank].lanes.empty()) tend_link(*links_[rank], now);
  }
  if (suspects_.empty() || failure()) return;
  report_suspects(now);
  if (!suspects_.empty()) next_tend_ = now + goodbye_time;
}

void Communicator::tend_link(ControlLink& link, Deadline now) {
  if (!link.announces() || link.has_broken()) receive_control(link);
  TcpPeer& peer = tcp_peers_[static_cast<size_t>(link.peer())];
  if (link.state() != ControlLink::State::open || peer.cut_at == Deadline{}) return;
  // What a dying process had sent may have kept its data connections open until now.
  if (link.is_closed() && has_closed_all(peer)) {
    link.declare_lost();
    follow_link(link);
    note_ended(link);
    return fail_by_peer(link.peer(), {});
  }
  if (now - peer.cut_at < unreachable_time || failure()) return;
  fail_by_peer(link.peer(), {});
}

// After something was read from a link, or its connections ended.
void Communicator::follow_link(ControlLink& link) {
  size_t rank = static_cast<size_t>(link.peer());
  TcpPeer& peer = tcp_peers_[rank];
  if (peer.lanes.empty()) {
    if (link.is_cut() && link.state() == ControlLink::State::open) link.declare_lost();
    return;
  }
  drop_paths(link);
  for (size_t path : link.take_broken()) {
    if (link.state() != ControlLink::State::open) break;
    link.report(PathDown{0, path, link.generation(path)});
    report_broken({link.peer(), 0, static_cast<int>(path)});
  }
  if (link.state() == ControlLink::State::open && link.is_cut() && peer.cut_at == Deadline{}) {
    peer.cut_at = Clock::now();
    if (link.is_closed() && has_died(link.peer())) link.declare_lost();
  }
  if (link.state() == ControlLink::State::open) return;
  for (TcpLane* lane : peer.lanes) lane->peer_is_gone();
}

// What the peer gave up is of no use to us either, unless it was replaced meanwhile.
void Communicator::drop_paths(ControlLink& link) {
  const std::vector<TcpLane*>& lanes = tcp_peers_[static_cast<size_t>(link.peer())].lanes;
  for (const PathDown& down : link.take_paths_down()) {
    if (down.path >= link.num_paths()) continue;
    if (down.index == 0) {
      if (link.generation(down.path) <= down.generation) link.lose(down.path, false);
      continue;
    }
    size_t lane = static_cast<size_t>(down.index) - 1;
    if (lane >= lanes.size() || lanes[lane]->generation(down.path) > down.generation) continue;
    lanes[lane]->lose(down.path, "the peer gave it up");
  }
}

bool Communicator::has_closed_all(const TcpPeer& peer) {
  auto hung_up = [](const TcpLane* lane) { return lane->hung_up(); };
  auto by_peer = [](const TcpLane* lane) { return lane->closed_by_peer(); };
  return std::all_of(peer.lanes.begin(), peer.lanes.end(), hung_up) &&
         std::any_of(peer.lanes.begin(), peer.lanes.end(), by_peer);
}

// A process that dies closes everything; a line that breaks, or one connection that is reset, leaves
// others open.
bool Communicator::has_died(int peer) {
  const std::vector<TcpLane*>& lanes = tcp_peers_[static_cast<size_t>(peer)].lanes;
  Deadline until = Clock::now() + dying_time;
  for (;;) {
    if (std::all_of(lanes.begin(), lanes.end(), [](const TcpLane* l) { return l->hung_up(); })) {
      return true;
    }
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Communicator::has_undelivered() {
  for (Deadline until = Clock::now() + turn_of_others; !try_take_baton();) {
    if (Clock::now() >= until) return false;  // a call that nobody ends drives
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  check_neglected();
  bool owes = !calls_left() && !failure() &&
              std::any_of(tcp_lanes_.begin(), tcp_lanes_.end(),
                          [](const TcpLane* lane) { return lane->owes(); });
  pass_baton();
  return owes;
}

// A socket that is closed while the peer still writes to it takes back what is on its way: so wait
// until the peer's kernel has all of it.
void Communicator::deliver_rest() {
  double limit_s = std::min(options_.path_timeout_s, longest_delivery_s);
  Deadline until =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
  for (TcpLane* lane : tcp_lanes_) {
    while (!lane->delivered() && Clock::now() < until) {
      lane->look();
      lane->tend(Clock::now());
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

std::vector<PathTrouble> Communicator::troubles_with(const std::vector<int>& ranks) const {
  std::vector<PathTrouble> found;
  for (int rank : ranks) {
    if (rank < 0 || rank == options_.rank) continue;
    // A rank that only receives has sent nothing that could stay unanswered; over the control link
    // probes go.
    const ControlLink& link = *links_[static_cast<size_t>(rank)];
    std::vector<double> unanswered;
    for (size_t path = 0; path < link.num_paths(); ++path) {
      unanswered.push_back(unanswered_s(link.fd(path)));
    }
    for (const TcpLane* lane : tcp_peers_[static_cast<size_t>(rank)].lanes) {
      std::vector<PathTrouble> troubles = lane->troubles(unanswered);
      if (troubles.empty()) continue;
      found.insert(found.end(), troubles.begin(), troubles.end());
      break;
    }
  }
  return found;
}

}  // namespace hccl
