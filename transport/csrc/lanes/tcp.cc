// The sending half of TcpLane, and its connections. tcp_receive.cc has the receiving half.
#include "lanes/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cmath>
#include <limits>

namespace hccl {

namespace {

constexpr auto check_period = std::chrono::milliseconds(100);
constexpr auto probe_after = std::chrono::milliseconds(200);
// Unsent bytes in the kernel: with several paths they could have taken another one.
constexpr int most_unsent_bytes = 256 * 1024;
// A path of unknown speed counts as fast, so that it gets tried.
constexpr double assumed_rate = 1e9;
// A path that is cut for a while is given up once and returns later. After this many breaks without
// an acknowledgement, although each connection had time for one, the path does not deliver.
constexpr int fruitless_breaks = 4;

// Returns whether the kernel retransmits without an answer, although the peer has room. The kernel
// does not send again but probes where data never left this host, because its interface is down; a
// living peer answers probes even with its window closed, and an answer resets their number.
bool is_cut(int fd, double timeout_s) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  bool repeats = info.tcpi_unacked > 0 && info.tcpi_retransmits >= 2 && info.tcpi_probes == 0;
  bool probes_in_vain = info.tcpi_probes >= 3;
  return (repeats || probes_in_vain) && info.tcpi_last_ack_recv >= timeout_s * 1000;
}

}  // namespace

TcpLane::TcpLane(int peer, std::vector<std::shared_ptr<Stream>> connections,
                 const TcpOptions& options, Statistics& statistics)
    : Lane(peer, options.slot_bytes, statistics),
      options_(options),
      pool_(options.slot_bytes),
      window_(options.slot_bytes, pool_) {
  if (connections.empty()) throw std::invalid_argument("a lane needs a connection");
  for (size_t i = 0; i < connections.size(); ++i) {
    auto record = std::make_shared<PathStatistics>();
    record->peer = peer;
    record->lane = options.lane;
    record->name = i < options.names.size() ? options.names[i] : "path " + std::to_string(i);
    paths_.push_back(std::make_unique<Path>(slot_bytes_, options.checksum, pool_, record));
  }
  for (size_t i = 0; i < connections.size(); ++i) {
    if (connections[i]) adopt(i, std::move(connections[i]));
  }
}

uint64_t TcpLane::post_send(const Header& header, const std::byte* payload) {
  throw_if_dead();
  uint64_t number = window_.post(header, payload);
  if (!is_wanted_) {
    note_wanted();
    if (options_.observer != nullptr) options_.observer->lane_wanted(*this);
  }
  send_waiting();
  // After it was sent: the peer is already at work while we copy.
  window_.keep(number);
  if (!flushed()) statistics_.tcp.stalls.add(1);
  return number;
}

void TcpLane::note_wanted() {
  if (std::exchange(is_wanted_, true)) return;
  wanted_at_ = Clock::now();
}

bool TcpLane::flush() {
  bool moved = false;
  for (size_t i = 0; i < paths_.size(); ++i) moved |= go_on(i);
  moved |= send_waiting();
  uint64_t before = window_.acknowledged();
  if (!polled_ && !settled()) poll();
  polled_ = false;
  if (is_window_full()) read_on();
  if (ack_due_) send_ack();
  if (!settled()) throw_if_dead();
  return moved || window_.acknowledged() != before;
}

void TcpLane::detach() {
  uint64_t before = completed();
  window_.detach();
  if (completed() == before) read_on();
}

bool TcpLane::flushed() const {
  return cursor_ > window_.posted() &&
         std::all_of(paths_.begin(), paths_.end(), [](auto& path) { return !path->sending(); });
}

bool TcpLane::send_waiting() {
  bool moved = false;
  for (;;) {
    while (cursor_ <= window_.posted() && window_.at(cursor_).path != Outgoing::no_path) ++cursor_;
    if (cursor_ > window_.posted() || is_window_full()) return moved;
    size_t path = choose(sizeof(Frame) + window_.at(cursor_).header.length);
    if (path == nowhere || paths_[path]->half_way()) return moved;
    Outgoing& entry = window_.at(cursor_);
    entry.path = static_cast<int>(path);
    Frame frame;
    frame.sequence = cursor_;
    frame.header = entry.header;
    if (!begin(path, frame, entry.payload)) paths_[path]->statistics()->stalls.add(1);
    moved = true;
  }
}

// The path that is expected to finish first, even if it cannot begin yet.
size_t TcpLane::choose(size_t num_bytes) {
  if (!several()) return paths_[0]->may_send() ? 0 : nowhere;
  Clock::time_point now = Clock::now();
  double fastest = assumed_rate;
  for (auto& path : paths_) {
    if (!path->may_send()) continue;
    path->measure(now);
    fastest = std::max(fastest, path->rate());
  }
  size_t best = nowhere;
  double best_time = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Path& path = *paths_[i];
    if (!path.may_send()) continue;
    double rate = path.rate() ? path.rate() : fastest;
    double time = static_cast<double>(path.outstanding() + num_bytes) / rate;
    if (time >= best_time) continue;
    best = i;
    best_time = time;
  }
  return best;
}

bool TcpLane::begin(size_t i, Frame& frame, const std::byte* payload) {
  frame.acknowledged = taken_;
  num_unacknowledged_ = num_large_ = small_received_ = 0;
  ack_due_ = false;
  paths_[i]->begin(frame, payload);
  return go_on(i);
}

bool TcpLane::go_on(size_t i) {
  if (!paths_[i]->half_way()) return false;
  uint64_t number = paths_[i]->sending();
  try {
    if (!paths_[i]->go_on(number ? window_.at(number).payload : nullptr)) return false;
  } catch (const StreamError& error) {
    paths_[i]->stop_sending();
    requeue(i);
    ack_due_ = true;  // an ack may have been lost
    // Messages that the peer sent before it stopped reading may still arrive.
    if (head_of(i) == nullptr) lose(i, error.what(), error.end);
    return true;
  }
  if (number == 0) return true;
  Outgoing& entry = window_.at(number);
  PathStatistics& record = *paths_[i]->statistics();
  statistics_.tcp.messages.add(1);
  statistics_.tcp.bytes.add(entry.header.length);
  record.messages.add(1);
  record.bytes.add(entry.header.length);
  if (entry.was_sent) record.retransmits.add(1);
  entry.was_sent = true;
  release_acknowledged();
  return true;
}

// On whatever connection can take it; if none can, the next frame carries it.
void TcpLane::send_ack() {
  ack_due_ = true;
  for (size_t i = 0; ack_due_ && i < paths_.size(); ++i) {
    size_t path = (last_path_ + i) % paths_.size();
    if (paths_[path]->may_begin()) send_control(path, Frame::ack);
  }
}

void TcpLane::send_control(size_t i, Frame::Kind kind) {
  Frame frame;
  frame.kind = kind;
  begin(i, frame, nullptr);
}

// The payload of a partially sent message is still read, even if the peer has the message.
void TcpLane::release_acknowledged() {
  uint64_t number = peer_has_;
  for (const auto& path : paths_) {
    if (uint64_t half_way = path->sending()) number = std::min(number, half_way - 1);
  }
  if (number <= window_.acknowledged()) return;
  window_.acknowledge(number);
  cursor_ = std::max(cursor_, number + 1);
}

void TcpLane::adopt(size_t i, std::shared_ptr<Stream> connection) {
  if (why_dead_) return connection->close();
  note_wanted();  // the peer's own attempt brings the other paths
  if (paths_[i]->up()) end(i, "the peer made another connection", StreamEnd::given_up);
  if (several()) {
    setsockopt(connection->fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most_unsent_bytes,
               sizeof most_unsent_bytes);
  }
  paths_[i]->adopt(std::move(connection));
  send_waiting();
  if (ack_due_) send_ack();
}

void TcpLane::count_break(size_t i, StreamEnd how) {
  bool fruitless = how == StreamEnd::given_up && peer_has_ < window_.posted();
  if (!fruitless || peer_has_ != number_at_break_) num_fruitless_breaks_ = 0;
  if (!fruitless) return;
  if (num_fruitless_breaks_++ == 0) first_fruitless_ = Clock::now();
  number_at_break_ = peer_has_;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(paths_[i]->fd(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0) mtu_ = info.tcpi_pmtu;
}

std::string TcpLane::why_fruitless() const {
  std::chrono::duration<double> elapsed = Clock::now() - first_fruitless_;
  int enough = fruitless_breaks * static_cast<int>(paths_.size());
  if (num_fruitless_breaks_ < enough || elapsed.count() < 3 * options_.path_timeout_s) return {};
  size_t num_bytes = sizeof(Frame) + window_.at(number_at_break_ + 1).header.length;
  return std::to_string(num_fruitless_breaks_) + " connections were made and broke in " +
         std::to_string(std::lround(elapsed.count())) + " s without delivering a message of " +
         std::to_string(num_bytes) + " bytes; do large packets vanish (MTU " +
         std::to_string(mtu_) +
         " here; ip link set dev INTERFACE mtu 1280)? see hccl-launch --check";
}

void TcpLane::lose(size_t i, const std::string& why, StreamEnd how) {
  if (!paths_[i]->up()) return;
  count_break(i, how);
  end(i, why, how);
  bool comes_back = options_.observer != nullptr && options_.observer->path_lost(*this, i);
  if (!comes_back) peer_ended_ = true;
  if (peer_ended_ && !any_up()) bury(why);
}

void TcpLane::end(size_t i, const std::string& why, StreamEnd how) {
  Path& path = *paths_[i];
  if (current_ == i) {
    if (complete_) {
      stash_current();
    } else {
      current_ = nowhere;
    }
  }
  path.cut({Clock::now(), why, how});
  requeue(i);
  ack_due_ = true;  // the last one may have been lost with it, and the peer may wait only for that
}

void TcpLane::requeue(size_t i) {
  for (uint64_t number = window_.acknowledged() + 1; number <= window_.posted(); ++number) {
    Outgoing& entry = window_.at(number);
    if (entry.path != static_cast<int>(i)) continue;
    entry.path = Outgoing::no_path;
    cursor_ = std::min(cursor_, number);
  }
  release_acknowledged();
}

void TcpLane::peer_has_ended() {
  peer_ended_ = true;
  if (!any_up()) bury("its connections were closed");
}

void TcpLane::bury(const std::string& why) {
  if (why_dead_) return;
  why_dead_ = why;
  // A peer that left without reading everything did not need it.
  while (window_.acknowledged() < window_.posted() &&
         window_.at(window_.acknowledged() + 1).was_sent) {
    window_.acknowledge(window_.acknowledged() + 1);
  }
  cursor_ = std::max(cursor_, window_.acknowledged() + 1);
}

void TcpLane::tend(Clock::time_point now) {
  if (why_dead_) return;
  if (ack_due_) send_ack();
  if (now - checked_at_ < check_period) return;
  checked_at_ = now;
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!paths_[i]->up()) continue;
    paths_[i]->measure(now);
    if (is_cut(paths_[i]->fd(), options_.path_timeout_s)) {
      lose(i, "the other end confirmed nothing that was sent");
    }
    go_on(i);
  }
  if (window_.acknowledged() != window_.posted()) {
    poll();
    send_waiting();
  }
  probe(now);
}

// Probes, at growing intervals, whether unacknowledged messages have arrived.
void TcpLane::probe(Clock::time_point now) {
  uint64_t number = window_.acknowledged();
  if (number == window_.posted() || number != progress_number_) {
    progress_number_ = number;
    progress_at_ = now;
    next_probe_ = now + probe_after;
  }
  if (now < next_probe_) return;
  next_probe_ = now + (now - progress_at_);
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i]->may_begin()) send_control(i, Frame::probe);
  }
}

bool TcpLane::is_open() const {
  return std::any_of(paths_.begin(), paths_.end(),
                     [](auto& path) { return path->up() && !has_hung_up(path->fd()); });
}

bool TcpLane::closed_by_peer() const {
  return std::any_of(paths_.begin(), paths_.end(), [](auto& path) {
    if (path->up()) return has_hung_up(path->fd()) && was_closed(path->fd());
    return path->was_up() && path->down().end == StreamEnd::closed;
  });
}

bool TcpLane::delivered() const {
  if (why_dead_ || !any_up()) return true;
  auto has_delivered = [](auto& path) { return path->delivered(); };
  return flushed() && std::all_of(paths_.begin(), paths_.end(), has_delivered);
}

bool TcpLane::owes() const {
  if (why_dead_ || peer_ended_ || window_.acknowledged() == window_.posted()) return false;
  return !any_up() || !delivered();
}

std::vector<PathTrouble> TcpLane::troubles(const std::vector<double>& unanswered) const {
  Clock::time_point now = Clock::now();
  std::vector<PathTrouble> found;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Path& path = *paths_[i];
    const std::string& name = path.statistics()->name;
    if (!path.up() && !is_wanted_) continue;
    if (!path.up()) {
      auto since = path.was_up() ? path.down().since : wanted_at_;
      double seconds = std::chrono::duration<double>(now - since).count();
      std::string why = path.was_up() ? path.down().why : "no connection was made yet";
      found.push_back({peer(), name, false, seconds, std::move(why)});
      continue;
    }
    double seconds = std::max(unanswered_s(path.fd()), i < unanswered.size() ? unanswered[i] : 0.0);
    if (seconds > 0) found.push_back({peer(), name, true, seconds, {}});
  }
  return found;
}

}  // namespace hccl
