// What becomes of single connections between hosts: acknowledgements that stop half-way, lost
// probes, control connections that break, how a peer that died is told from one that is out of
// reach, and lanes whose connections are made when first needed.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

#include "engine/connection/control_link.h"
#include "wire.h"

namespace hccl::test {
namespace {

// A socket that takes so many bytes and no more.
class NarrowStream final : public Stream {
 public:
  NarrowStream(int socket, size_t room) : inner_(Descriptor(socket)), room_(room) {}

  int fd() const override { return inner_.fd(); }
  size_t send(std::span<const iovec> parts) override {
    iovec first = parts[0];
    first.iov_len = std::min(first.iov_len, room_);
    if (first.iov_len == 0) return 0;
    size_t sent = inner_.send({&first, 1});
    room_ -= sent;
    return sent;
  }
  size_t receive(std::span<const iovec> parts) override { return inner_.receive(parts); }
  void close() override { inner_.close(); }
  void widen() { room_ = ~size_t{0}; }

 private:
  SocketStream inner_;
  size_t room_;
};

// Frames without payload that a lane has sent to the test's end of its connection.
std::vector<Frame> frames_on(int fd) {
  std::vector<Frame> frames;
  Frame frame;
  while (recv(fd, &frame, sizeof frame, MSG_PEEK | MSG_DONTWAIT) == sizeof frame) {
    CHECK(recv(fd, &frame, sizeof frame, 0) == sizeof frame && frame.header.length == 0);
    frames.push_back(frame);
  }
  return frames;
}

void put_message(int fd, uint64_t number, size_t size) {
  Frame frame;
  frame.serial = static_cast<uint32_t>(number - 1);
  frame.sequence = number;
  frame.header.length = static_cast<uint32_t>(size);
  std::vector<std::byte> payload(size);
  CHECK(::send(fd, &frame, sizeof frame, 0) == sizeof frame);
  CHECK(::send(fd, payload.data(), size, 0) == static_cast<ssize_t>(size));
}

// A rank that only receives has nothing to flush.
HCCL_TEST(an_acknowledgement_that_stopped_half_way_goes_on) {
  auto ends = unix_sockets();
  auto narrow = std::make_shared<NarrowStream>(ends[0], 10);
  Statistics statistics;
  TcpOptions options;
  options.slot_bytes = slot_bytes;
  TcpLane lane(1, {narrow}, options, statistics);
  std::vector<std::byte> received(slot_bytes);
  for (uint64_t number : {1, 2}) {
    put_message(ends[1], number, slot_bytes);
    for (Patience patience; !lane.peek(); patience.turn()) continue;
    for (Patience patience; !lane.receive(received.data()); patience.turn()) continue;
    lane.release();
  }
  narrow->widen();
  std::vector<Frame> frames;
  for (Patience patience; frames.empty(); patience.turn()) {
    lane.tend(Clock::now());
    frames = frames_on(ends[1]);
  }
  CHECK(frames[0].kind == Frame::ack && frames[0].acknowledged == 2);
  ::close(ends[1]);
}

// However many paths broke while no control connection stood, the peer hears of each.
HCCL_TEST(all_that_was_said_while_cut_is_said_again) {
  auto before = unix_sockets(), after = unix_sockets();
  ControlLink link({stream_on(before[0])});
  link.lose(0);
  constexpr size_t num_paths = 96;  // of one lane: HCCL_CONNECTIONS=32 on three interfaces
  for (uint64_t generation : {1, 2, 3}) {
    for (size_t path = 0; path < num_paths; ++path) link.report_down(1, path, generation);
  }
  link.say_goodbye(7);
  link.adopt(0, stream_on(after[0]));
  std::set<uint64_t> heard;
  ControlMessage message;
  do {
    CHECK(recv(after[1], &message, sizeof message, MSG_DONTWAIT) == sizeof message);
    if (message.kind == ControlMessage::path_down && message.generation == 3) {
      heard.insert(message.path);
    }
  } while (message.kind != ControlMessage::goodbye);
  CHECK(heard.size() == num_paths);
  for (int fd : {before[1], after[1]}) ::close(fd);
}

void peer_is_lost_once_its_lanes_close(void (*break_control)(int)) {
  Wire wire;
  std::vector<std::byte> bytes(8);
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.rank->start(request);
  break_control(wire.control);
  CHECK(!wire.rank->wait(request, in(milliseconds(600)), no_interrupt));
  wire.close_lanes();
  CHECK(!wire.rank->wait(request, in(milliseconds(200)), no_interrupt));  // it may live
  wire.rank->note_refusal(1);
  CHECK(eventually([&] { return request->is_done(); }));
  CHECK(request->failure->cause == Cause::lost);
}

// What a dying process had sent before may keep its data connections busy for a while.
HCCL_TEST(a_death_behind_a_long_queue_is_one) {
  peer_is_lost_once_its_lanes_close([](int control) { shutdown(control, SHUT_RDWR); });
}

HCCL_TEST(a_death_after_garbage_on_the_control_link_is_one) {
  peer_is_lost_once_its_lanes_close([](int control) {
    char garbage[256] = "no control message";
    CHECK(::send(control, garbage, sizeof garbage, 0) == sizeof garbage);
  });
}

constexpr milliseconds moment(300);  // that the rank would use, were it to end the call

Header eager_header() { return {.fingerprint = 7, .size = 8, .length = 8, .kind = 1}; }

HCCL_TEST(a_lane_asks_once_for_its_connection_and_then_sends) {
  Wire wire(Wire::Lanes::later);
  Connections& connections = wire.rank->connections();
  std::vector<std::byte> bytes(8);
  CHECK(connections.take_wanted().empty());
  for (int i = 0; i < 2; ++i) wire.rank->start(transfer(RequestKind::send, bytes, 1, 7));
  std::vector<BrokenPath> wanted = connections.take_wanted();
  CHECK(wanted.size() == 1 && wanted[0].peer == 1 && wanted[0].index == 1 + Wire::num_channels);
  CHECK(eventually([&] { return wire.rank->has_undelivered(); }));  // false while a call drives
  wire.connect();
  for (uint64_t number : {1, 2}) {
    char message[sizeof(Frame) + 8];
    constexpr ssize_t all = sizeof message;
    // The socket does not block, and another thread sends.
    CHECK(eventually([&] { return recv(wire.lanes.back(), message, all, MSG_PEEK) == all; }));
    CHECK(recv(wire.lanes.back(), message, all, 0) == all);
    CHECK(reinterpret_cast<Frame*>(message)->sequence == number);
  }
  CHECK(connections.take_wanted().empty());
}

// Does something in the middle of the driver's turn that first reads from it.
class MeddlingStream final : public Stream {
 public:
  MeddlingStream(Descriptor socket, std::function<void()> meddle)
      : inner_(std::move(socket)), meddle_(std::move(meddle)) {}

  int fd() const override { return inner_.fd(); }
  size_t send(std::span<const iovec> parts) override { return inner_.send(parts); }
  size_t receive(std::span<const iovec> parts) override {
    if (meddle_) std::exchange(meddle_, nullptr)();
    return inner_.receive(parts);
  }
  void close() override { inner_.close(); }

 private:
  SocketStream inner_;
  std::function<void()> meddle_;
};

// Another lane's connection comes while this thread drives.
RequestPtr receive_amid_an_offer(Wire& wire, std::vector<std::byte>& bytes) {
  wire.connect<MeddlingStream>(Wire::num_channels, [&wire] { wire.connect(0); });
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.rank->start(request);
  return request;
}

HCCL_TEST(a_connection_that_comes_during_a_turn_is_used_without_a_progress_thread) {
  Wire wire(Wire::Lanes::later);
  wire.progress->stop();
  std::vector<std::byte> bytes(8);
  receive_amid_an_offer(wire, bytes);
  CHECK(wire.rank->connections().path_statistics()[0]->connected.value() == 1);
}

HCCL_TEST(a_call_goes_on_after_a_turn_in_which_a_connection_came) {
  Wire wire(Wire::Lanes::later);
  std::vector<std::byte> bytes(8);
  RequestPtr request = receive_amid_an_offer(wire, bytes);
  wire.send(eager_header(), 8);
  CHECK(eventually([&] { return request->is_done(); }));
}

HCCL_TEST(a_goodbye_ends_a_lane_once_its_connection_has_come) {
  Wire wire(Wire::Lanes::later);
  std::vector<std::byte> bytes(8);
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.rank->start(request);
  wire.connect(0);  // which the peer has not: one of another lane says nothing
  wire.say({.generation = 1 << Wire::num_channels});
  CHECK(!wire.rank->wait(request, in(moment), no_interrupt));
  wire.connect();
  wire.send(eager_header(), 8);
  CHECK(wire.rank->wait(request, in(seconds(20)), no_interrupt));
}

HCCL_TEST(a_goodbye_ends_a_lane_at_once_that_its_sender_never_used) {
  Wire wire(Wire::Lanes::later);
  std::vector<std::byte> bytes(8);
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.say({.generation = 0});
  CHECK(cause_of(*wire.rank, request) == Cause::left);
}

HCCL_TEST(a_peer_without_lanes_is_lost_once_nobody_listens_there) {
  Wire wire(Wire::Lanes::later);
  std::vector<std::byte> bytes(8);
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.rank->start(request);
  wire.rank->note_refusal(1);  // says nothing while the control link stands
  shutdown(wire.control, SHUT_RDWR);
  CHECK(!wire.rank->wait(request, in(moment), no_interrupt));
  std::vector<BrokenPath> broken = wire.rank->take_broken();
  CHECK(broken.size() == 1 && broken[0].index == 0);
  wire.rank->note_refusal(1);
  CHECK(eventually([&] { return request->is_done(); }));
  CHECK(request->failure->cause == Cause::lost);
}

// The kernel resets the connections of a killed process that has not read all: no end looks closed.
RequestPtr refused_after_resets(Wire& wire, std::vector<std::byte>& bytes) {
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
  wire.rank->start(request);
  linger at_once{1, 0};
  Descriptor null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::vector<int> theirs = wire.lanes;
  theirs.push_back(wire.control);
  for (int fd : theirs) {
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    CHECK(dup2(null.get(), fd) == fd);  // closes it; the wire closes the number again
  }
  CHECK(!wire.rank->wait(request, in(moment), no_interrupt));  // a network may have done it
  wire.rank->note_refusal(1);
  return request;
}

HCCL_TEST(a_peer_of_this_host_is_lost_once_it_refuses_after_resets) {
  Wire wire(Wire::Lanes::at_start, [] { return tcp_sockets(); });
  std::vector<std::byte> bytes(8);
  RequestPtr request = refused_after_resets(wire, bytes);
  CHECK(eventually([&] { return request->is_done(); }));
  CHECK(request->failure->cause == Cause::lost);
}

HCCL_TEST(a_peer_of_another_address_may_refuse_after_resets_and_live) {
  Wire wire(Wire::Lanes::at_start, [] { return tcp_sockets(INADDR_LOOPBACK + 1); });
  std::vector<std::byte> bytes(8);
  CHECK(!wire.rank->wait(refused_after_resets(wire, bytes), in(moment), no_interrupt));
}

}  // namespace
}  // namespace hccl::test
