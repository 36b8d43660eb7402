// Wires and flows by a clock that the test sets, and a network between sockets of this process.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/stream.h"
#include "check.h"
#include "emulation/flow.h"
#include "emulation/network.h"

namespace hccl::test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = EmulatedWire::Clock;
using Bytes = std::vector<std::byte>;

constexpr int patience_ms = 30'000;
const Clock::time_point start = Clock::now();

struct Ends {
  Descriptor left;
  Descriptor right;
};

// Of another kind than TCP where it does not matter.
Ends unix_pair() {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Ends tcp_pair() {
  Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  CHECK(bind(listener.get(), name, size) == 0 && listen(listener.get(), 1) == 0);
  CHECK(getsockname(listener.get(), name, &size) == 0);
  Descriptor left(socket(AF_INET, SOCK_STREAM, 0));
  CHECK(connect(left.get(), name, size) == 0);
  Descriptor right(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  CHECK(fcntl(left.get(), F_SETFL, O_NONBLOCK) == 0);
  return {std::move(left), std::move(right)};
}

Bytes made_of(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random());
  return bytes;
}

size_t available(int fd) {
  char buffer[1 << 16];
  ssize_t got = recv(fd, buffer, sizeof buffer, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 ? 0 : static_cast<size_t>(got);
}

// Moves all of `bytes` from one socket to another, through whatever lies between.
void check_passes(int from, int to, const Bytes& bytes) {
  Bytes received(bytes.size());
  size_t sent = 0, got = 0;
  while (got < bytes.size()) {
    pollfd ends[2] = {{from, static_cast<short>(sent < bytes.size() ? POLLOUT : 0), 0},
                      {to, POLLIN, 0}};
    CHECK(poll(ends, 2, patience_ms) > 0);
    if (ends[0].revents & POLLOUT) {
      ssize_t now = send(from, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT);
      if (now > 0) sent += static_cast<size_t>(now);
    }
    ssize_t now = recv(to, received.data() + got, received.size() - got, MSG_DONTWAIT);
    CHECK(now != 0);
    if (now > 0) got += static_cast<size_t>(now);
  }
  CHECK(received == bytes);
}

HCCL_TEST(headers_are_counted_for_each_packet) {
  CHECK(bytes_with_headers(1) == 67);
  CHECK(bytes_with_headers(1448) == 1514);
  CHECK(bytes_with_headers(2 * 1448) == 2 * 1514);
  CHECK(bytes_with_headers(1449) == 1449 + 2 * 66);
}

HCCL_TEST(wire_takes_the_time_of_its_bytes_one_after_the_other) {
  EmulatedWire wire(1e6, 0, 0);
  CHECK(wire.take(start, 1000) == start + milliseconds(1));
  CHECK(wire.take(start, 2000) == start + milliseconds(3));
  // It stood still until 10 ms.
  CHECK(wire.take(start + milliseconds(10), 1000) == start + milliseconds(11));
  CHECK(wire.num_bytes() == 4000);
}

HCCL_TEST(wire_that_stood_still_takes_its_burst_at_once) {
  EmulatedWire wire(1e6, 2000, 0);
  CHECK(wire.take(start, 2000) == start);
  CHECK(wire.take(start, 1000) == start + milliseconds(1));
}

// Else a process that waits for a core would make the network slower.
HCCL_TEST(bytes_that_waited_leave_as_if_nobody_had_been_late) {
  EmulatedWire wire(1e6, 0, 0);
  wire.take(start, 1000);
  CHECK(wire.take(start, 1000) == start + milliseconds(2));
  CHECK(wire.take(start + milliseconds(20), 1000) == start + milliseconds(21));
}

HCCL_TEST(flow_brings_bytes_when_the_last_has_arrived) {
  Ends in = unix_pair(), out = unix_pair();
  EmulatedWire wire(1e6, 0, 0);
  Flow flow(in.right.get(), out.left.get(), {&wire}, milliseconds(5));
  CHECK(write(in.left.get(), "12345678", 8) == 8);
  CHECK(flow.read(start));
  Clock::time_point due = start + microseconds(8 + 66) + milliseconds(5);
  CHECK(flow.due() == due);
  CHECK(!flow.deliver(due - microseconds(1)) && available(out.right.get()) == 0);
  CHECK(flow.deliver(due) && available(out.right.get()) == 8);
}

HCCL_TEST(flow_is_as_slow_as_its_slowest_wire_and_leaves_the_rest_with_the_sender) {
  Ends in = unix_pair(), out = unix_pair();
  EmulatedWire fast(1e9, 0, 0), slow(1e6, 0, 0);
  Flow flow(in.right.get(), out.left.get(), {&fast, &slow}, {});
  Bytes sent(60'000);
  CHECK(write(in.left.get(), sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
  size_t num_reads = 0;
  while (flow.read(start)) ++num_reads;
  // Trains of two segments, 3028 us each: the queue of 4 ms takes two of them.
  CHECK(num_reads == 2);
  CHECK(flow.reads_at() == start + microseconds(2 * 3028) - milliseconds(4));
  flow.deliver(start + milliseconds(100));
  CHECK(available(out.right.get()) == 2 * 2896);
}

HCCL_TEST(end_of_a_stream_comes_after_its_last_byte) {
  Ends in = unix_pair(), out = unix_pair();
  EmulatedWire wire(1e6, 0, 0);
  Flow flow(in.right.get(), out.left.get(), {&wire}, milliseconds(5));
  CHECK(write(in.left.get(), "1", 1) == 1);
  shutdown(in.left.get(), SHUT_WR);
  while (flow.read(start)) continue;
  CHECK(!flow.deliver(start + milliseconds(5)) && !flow.has_ended());
  flow.deliver(start + milliseconds(6));
  char buffer[2];
  CHECK(flow.has_ended() && !flow.is_broken());
  CHECK(read(out.right.get(), buffer, 2) == 1 && read(out.right.get(), buffer, 2) == 0);
}

// A network, and a connection of two ranks through it.
struct Carried {
  Carried(double bytes_per_s, double latency_s) : network(2, bytes_per_s, 16e3, {}, latency_s, {}) {
    network.carry(std::move(here.right), std::move(there.left), 0, 1);
  }

  Ends here = tcp_pair();
  Ends there = tcp_pair();
  EmulatedNetwork network;
};

HCCL_TEST(network_carries_all_bytes_in_both_directions) {
  Carried carried(1e8, 0.0002);
  for (unsigned seed = 0; seed < 6; ++seed) {
    check_passes(carried.here.left.get(), carried.there.right.get(),
                 made_of(1 + seed * 99'991, seed));
    check_passes(carried.there.right.get(), carried.here.left.get(), made_of(77'777, seed));
  }
  uint64_t sent = 0, all = 0;
  for (const WireTraffic& wire : carried.network.traffic()) {
    if (wire.from == 0 && wire.leaves) sent = wire.num_bytes;
    all += wire.num_bytes;
  }
  size_t payload = 6 + 15 * 99'991;
  CHECK(sent > payload && sent < payload * 11 / 10, "%zu\n", static_cast<size_t>(sent));
  CHECK(all > 2 * sent);
}

HCCL_TEST(network_is_no_faster_than_its_wires) {
  Carried carried(1e6, 0.02);
  auto begun = Clock::now();
  check_passes(carried.here.left.get(), carried.there.right.get(), made_of(116'000, 1));
  CHECK(Clock::now() - begun >= milliseconds(100 + 20));
}

HCCL_TEST(network_passes_an_end_and_a_reset_on) {
  char byte;
  pollfd end{0, POLLIN, 0};
  {
    Carried carried(1e8, 0);
    shutdown(carried.here.left.get(), SHUT_WR);
    end.fd = carried.there.right.get();
    CHECK(poll(&end, 1, patience_ms) == 1 && recv(end.fd, &byte, 1, 0) == 0);
  }
  Carried carried(1e8, 0);
  linger at_once{1, 0};
  setsockopt(carried.here.left.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  {
    Descriptor closed(std::move(carried.here.left));
  }
  end.fd = carried.there.right.get();
  CHECK(poll(&end, 1, patience_ms) == 1 && recv(end.fd, &byte, 1, 0) == -1);
  CHECK(errno == ECONNRESET);
}

HCCL_TEST(cut_link_passes_nothing_and_its_kernel_hears_nothing) {
  Carried carried(1e8, 0);
  Bytes bytes = made_of(1000, 1);
  check_passes(carried.here.left.get(), carried.there.right.get(), bytes);
  auto begun = Clock::now();
  carried.network.cut(1, 0, 0.3);
  carried.network.traffic();  // the cut has begun: commands are done in order
  CHECK(write(carried.here.left.get(), bytes.data(), bytes.size()) == 1000);
  CHECK(unconfirmed_bytes(carried.here.left.get()) == 1000);
  pollfd end{carried.there.right.get(), POLLIN, 0};
  CHECK(poll(&end, 1, patience_ms) == 1);
  CHECK(Clock::now() - begun >= milliseconds(300));
  check_passes(carried.there.right.get(), carried.here.left.get(), bytes);
}

HCCL_TEST(network_rejects_nodes_that_it_does_not_have) {
  EmulatedNetwork network(2, 1e6, 0, {}, 0, {});
  CHECK(throws<std::invalid_argument>([&] { network.cut(0, 2, 1); }));
  CHECK(throws<std::invalid_argument>([&] { network.cut(1, 1, 1); }));
}

}  // namespace
}  // namespace hccl::test
