#include "emulation/network.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <future>
#include <stdexcept>
#include <string>

namespace hccl {

namespace {

using Pair = EmulatedNetwork::Pair;

// The queue of a switch's port: one busy receiver does not stop its senders' messages to others.
constexpr double port_queue_bytes = 1 << 20;
// Small, because bytes in this buffer have left their sender's host as far as the sender can see.
constexpr int receive_buffer_bytes = 256 * 1024;

Pair in_order(int one, int other) { return {std::min(one, other), std::max(one, other)}; }

EmulatedWire::Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<EmulatedWire::Clock::duration>(
      std::chrono::duration<double>(seconds));
}

// Drops every packet that comes in, acknowledgements included, or none. A filter is replaced and
// never detached, which qemu-user cannot do.
void set_dropping(int fd, bool drops) {
  sock_filter filter{BPF_RET | BPF_K, 0, 0, drops ? 0 : ~uint32_t{0}};
  sock_fprog program{1, &filter};
  setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void prepare(int fd) {
  int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
}

// Makes close() reset the connection.
void set_reset_at_close(int fd) {
  linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

}  // namespace

EmulatedNetwork::EmulatedNetwork(int num_nodes, double bytes_per_s, double burst_bytes,
                                 const std::map<Pair, double>& links, double latency_s,
                                 std::map<Pair, double> latencies_s)
    : latency_s_(latency_s),
      latencies_s_(std::move(latencies_s)),
      epoll_(opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      timer_(opened(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd")),
      bell_(new_event()) {
  for (int node = 0; node < num_nodes; ++node) {
    nics_.push_back({EmulatedWire(bytes_per_s, burst_bytes, 0),
                     EmulatedWire(bytes_per_s, burst_bytes, port_queue_bytes)});
  }
  for (const auto& [nodes, rate] : links) {
    check_pair(nodes.first, nodes.second);
    for (Pair way : {nodes, Pair{nodes.second, nodes.first}}) {
      links_.emplace(way, EmulatedWire(rate, burst_bytes, port_queue_bytes));
    }
  }
  for (int fd : {timer_.get(), bell_.get()}) {
    epoll_event event{EPOLLIN | EPOLLET, {.ptr = nullptr}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("epoll_ctl");
  }
  sigset_t all, before;  // signals belong to the main thread
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

EmulatedNetwork::~EmulatedNetwork() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  signal_event(bell_);
  thread_.join();
}

void EmulatedNetwork::check_pair(int one, int other) const {
  int count = static_cast<int>(nics_.size());
  if (one < 0 || other < 0 || one >= count || other >= count || one == other) {
    throw std::invalid_argument("nodes " + std::to_string(one) + " and " + std::to_string(other) +
                                ": expected two of the nodes 0.." + std::to_string(count - 1));
  }
}

void EmulatedNetwork::post(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  signal_event(bell_);
}

void EmulatedNetwork::carry(Descriptor here, Descriptor there, int from, int to) {
  check_pair(from, to);
  // Shared, because a std::function must be copyable and a descriptor is not.
  auto ends =
      std::make_shared<std::pair<Descriptor, Descriptor>>(std::move(here), std::move(there));
  post([=, this] { add(std::move(ends->first), std::move(ends->second), from, to); });
}

void EmulatedNetwork::cut(int one, int other, double seconds) {
  check_pair(one, other);
  post([=, this] {
    cuts_[in_order(one, other)] = Clock::now() + duration_of(seconds);
    for (auto& connection : connections_) {
      if (connection->nodes != in_order(one, other)) continue;
      set_dropping(connection->here.get(), true);
      set_dropping(connection->there.get(), true);
    }
  });
}

std::vector<WireTraffic> EmulatedNetwork::traffic() {
  auto counted = std::make_shared<std::promise<std::vector<WireTraffic>>>();
  post([=, this] {
    std::vector<WireTraffic> all;
    auto note = [&](int from, int to, bool leaves, const EmulatedWire& wire) {
      all.push_back({from, to, leaves, wire.num_bytes(), wire.bytes_per_s()});
    };
    for (size_t node = 0; node < nics_.size(); ++node) {
      note(static_cast<int>(node), any_node, true, nics_[node].out);
      note(static_cast<int>(node), any_node, false, nics_[node].in);
    }
    for (const auto& [way, wire] : links_) note(way.first, way.second, true, wire);
    counted->set_value(std::move(all));
  });
  return counted->get_future().get();
}

void EmulatedNetwork::run() {
  for (;;) {
    take_commands();
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    Clock::time_point now = Clock::now();
    end_cuts(now);
    sleep(turn(now));
  }
}

void EmulatedNetwork::take_commands() {
  std::deque<std::function<void()>> taken;
  {
    std::lock_guard lock(mutex_);
    taken.swap(commands_);
  }
  for (auto& command : taken) command();
}

std::vector<EmulatedWire*> EmulatedNetwork::wires_between(int from, int to) {
  std::vector<EmulatedWire*> wires{&nics_[static_cast<size_t>(from)].out};
  if (auto link = links_.find({from, to}); link != links_.end()) wires.push_back(&link->second);
  wires.push_back(&nics_[static_cast<size_t>(to)].in);
  return wires;
}

void EmulatedNetwork::add(Descriptor here, Descriptor there, int from, int to) {
  int left = here.get(), right = there.get();
  Pair nodes = in_order(from, to);
  auto its = latencies_s_.find(nodes);
  auto latency = duration_of(its == latencies_s_.end() ? latency_s_ : its->second);
  for (int fd : {left, right}) {
    prepare(fd);
    if (cuts_.contains(nodes)) set_dropping(fd, true);
  }
  connections_.push_back(std::unique_ptr<EmulatedConnection>(new EmulatedConnection{
      std::move(here), std::move(there), nodes, Flow(left, right, wires_between(from, to), latency),
      Flow(right, left, wires_between(to, from), latency)}));
  // An event on one end is noted for both: reading a socket that is not ready costs little.
  epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = connections_.back().get()}};
  for (int fd : {left, right}) epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void EmulatedNetwork::end_cuts(Clock::time_point now) {
  std::erase_if(cuts_, [&](const auto& cut) {
    if (cut.second > now) return false;
    for (auto& connection : connections_) {
      if (connection->nodes != cut.first) continue;
      set_dropping(connection->here.get(), false);
      set_dropping(connection->there.get(), false);
    }
    return true;
  });
}

EmulatedNetwork::Clock::time_point EmulatedNetwork::turn(Clock::time_point now) {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [nodes, until] : cuts_) next = std::min(next, until);
  bool moved = true;
  // All connections in turn, as packets share a wire.
  while (moved) {
    moved = false;
    for (auto& connection : connections_) {
      if (cuts_.contains(connection->nodes)) continue;
      for (Flow* flow : {&connection->out, &connection->back}) {
        moved |= flow->deliver(now);
        moved |= flow->read(now);
      }
    }
    if (moved) now = Clock::now();
  }
  std::erase_if(connections_, [this](const auto& connection) {
    if (!connection->is_done()) return false;
    bool is_broken = connection->out.is_broken() || connection->back.is_broken();
    for (int fd : {connection->here.get(), connection->there.get()}) {
      // The rank may still have a copy of the descriptor, which would keep the events.
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
      if (is_broken) set_reset_at_close(fd);
    }
    return true;
  });
  for (auto& connection : connections_) {
    if (cuts_.contains(connection->nodes)) continue;
    for (const Flow* flow : {&connection->out, &connection->back}) {
      next = std::min({next, flow->due(), flow->reads_at()});
    }
  }
  return next;
}

void EmulatedNetwork::sleep(Clock::time_point until) {
  itimerspec when{};
  if (until != Clock::time_point::max()) {
    // Zero would disarm the timer.
    auto since = std::max<int64_t>(1, until.time_since_epoch() / std::chrono::nanoseconds(1));
    when.it_value = {since / 1'000'000'000, since % 1'000'000'000};
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  epoll_event events[64];
  int count = epoll_wait(epoll_.get(), events, 64, -1);
  clear_event(bell_);
  clear_event(timer_);
  for (int i = 0; i < count; ++i) {
    auto* connection = static_cast<EmulatedConnection*>(events[i].data.ptr);
    if (connection == nullptr) continue;
    for (Flow* flow : {&connection->out, &connection->back}) {
      flow->note_readable();
      flow->note_writable();
    }
  }
}

}  // namespace hccl
