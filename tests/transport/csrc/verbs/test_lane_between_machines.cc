// The conformance suite of lanes with one end on each of two machines, over their RDMA devices.
//
//   HCCL_TEST_RDMA=rxe0:1 HCCL_TEST_MACHINE=1 HCCL_TEST_ADDRESS=10.99.0.1:7200
//   test_lane_between_machines
//
// Machine 1 listens at the address, machine 2 dials it. `.ci/roce` runs this in two virtual
// machines; without the variables nothing is tested.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "lanes.h"

namespace hccl::test {
namespace {

// As in test_lane.cc.
const std::vector<size_t> sizes = {
    0, 1, 63, 64, 65, 87, 88, 89, 2047, 2048, 2049, 4095, 4096, 4097, slot_bytes - 1, slot_bytes};

bool is_first() { return std::string(std::getenv("HCCL_TEST_MACHINE")) == "1"; }

// The connection over which the two programs meet; a byte each way is a barrier.
class Wire {
 public:
  Wire() {
    std::string text = std::getenv("HCCL_TEST_ADDRESS");
    size_t colon = text.find(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(text.substr(colon + 1))));
    CHECK(inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) == 1);
    fd_ = is_first() ? accepted(address) : dialled(address);
  }
  ~Wire() { ::close(fd_); }

  template <class T>
  T exchange(const T& mine) {
    CHECK(::send(fd_, &mine, sizeof mine, MSG_NOSIGNAL) == sizeof mine);
    T theirs;
    CHECK(::recv(fd_, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
    return theirs;
  }
  void barrier() { exchange(char{1}); }

 private:
  static int accepted(const sockaddr_in& address) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    CHECK(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    CHECK(listen(listener, 1) == 0);
    int fd = accept(listener, nullptr, nullptr);
    CHECK(fd >= 0);
    ::close(listener);
    return fd;
  }
  static int dialled(const sockaddr_in& address) {
    Patience patience;
    for (;; patience.turn()) {
      int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
      ::close(fd);
      usleep(100'000);
    }
  }

  int fd_;
};

// The end of a lane that is here.
struct Here {
  Wire wire;
  Statistics statistics;
  RdmaEnd end;
  std::unique_ptr<Lane> lane;

  explicit Here(size_t num_pairs, size_t min_registered_bytes)
      : end(*rdma_port(), num_pairs, slot_bytes) {
    std::vector<RdmaPeer> theirs;
    for (const RdmaPeer& mine : end.describe()) theirs.push_back(wire.exchange(mine));
    end.attach(theirs);
    wire.barrier();
    lane = end.start(is_first() ? 1 : 0, statistics, min_registered_bytes);
  }
};

struct Shape {
  const char* name;
  size_t num_pairs;
  size_t min_registered_bytes;
};
const Shape shapes[] = {
    {"one queue pair", 1, 0}, {"three queue pairs", 3, 0}, {"registered memory", 1, 1000}};

#define BETWEEN_MACHINES(test)                                               \
  void test(Here& here, bool copies);                                        \
  HCCL_TEST(test) {                                                          \
    if (!rdma_port() || std::getenv("HCCL_TEST_MACHINE") == nullptr) return; \
    for (const Shape& shape : shapes) {                                      \
      std::printf("  %s\n", shape.name);                                     \
      std::fflush(stdout);                                                   \
      Here here(shape.num_pairs, shape.min_registered_bytes);                \
      test(here, shape.min_registered_bytes == 0);                           \
      here.wire.barrier();                                                   \
    }                                                                        \
  }                                                                          \
  void test(Here& here, bool copies)

BETWEEN_MACHINES(every_size_arrives_whole) {
  (void)copies;
  Inbox inbox(*here.lane);
  Patience patience;
  for (bool sends : {is_first(), !is_first()}) {
    uint64_t number = 0;
    for (How how : {How::receive, How::lend}) {
      for (size_t size : sizes) {
        auto payload = payload_of(number, size);
        if (sends) here.lane->post_send(header_of(number, size), payload.data());
        while (sends ? !here.lane->settled() : !inbox.take(number, size, how)) {
          here.lane->flush();
          patience.turn();
        }
        ++number;
      }
    }
    here.lane->peek();  // what it owes of credits goes back
    here.wire.barrier();
  }
  CHECK(here.lane->peek() == nullptr);
}

BETWEEN_MACHINES(both_talk_at_once) {
  (void)copies;
  Talker talker(*here.lane, 3000, sizes);
  Patience patience;
  while (!talker.turn()) patience.turn();
  // The last credits of the other end may still have to come from here.
  here.wire.barrier();
  CHECK(here.lane->peek() == nullptr);
}

BETWEEN_MACHINES(a_detached_payload_may_change) {
  if (!copies) return;
  if (is_first()) {
    std::deque<std::vector<std::byte>> payloads;
    auto post = [&] {
      uint64_t i = payloads.size();
      payloads.push_back(payload_of(i, slot_bytes));
      here.lane->post_send(header_of(i, slot_bytes), payloads.back().data());
    };
    for (int i = 0; i < 40; ++i) post();
    CHECK(!here.lane->flushed());
    here.lane->detach();
    for (uint64_t i = 0; i < here.lane->completed(); ++i) {
      std::fill(payloads[i].begin(), payloads[i].end(), std::byte{0xee});
    }
    here.wire.barrier();
    Patience patience;
    for (; !here.lane->settled(); patience.turn()) here.lane->flush();
    here.wire.barrier();
  } else {
    here.wire.barrier();
    Inbox inbox(*here.lane);
    Patience patience;
    for (uint64_t i = 0; i < 40; patience.turn()) {
      if (inbox.take(i, slot_bytes, how_of(i))) ++i;
    }
    here.wire.barrier();
  }
}

BETWEEN_MACHINES(what_was_sent_before_closing_arrives) {
  if (!copies) return;
  Patience patience;
  if (is_first()) {
    for (uint64_t i : {0, 1, 2}) {
      auto payload = payload_of(i, 5000);
      here.lane->post_send(header_of(i, 5000), payload.data());
      for (; !here.lane->settled(); patience.turn()) here.lane->flush();
    }
    here.lane.reset();
    return;
  }
  Inbox inbox(*here.lane);
  for (uint64_t i = 0; i < 3; patience.turn()) {
    if (inbox.take(i, 5000, how_of(i))) ++i;
  }
  std::string said;
  while (said.empty()) {
    try {
      here.lane->peek();
      Sleep sleep(Sleeper::caller);
      here.lane->prepare_sleep(sleep);
      patience.turn();
    } catch (const LaneError& error) {
      said = error.what();
    }
  }
  // IBV_WC_RETRY_EXC_ERR: its queue pair is not there any more.
  CHECK(said.find("ibv_wc_status 12") != std::string::npos, "%s\n", said.c_str());
}

}  // namespace
}  // namespace hccl::test
