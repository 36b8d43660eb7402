// Lanes between hosts over connections that misbehave: nothing is lost, doubled or reordered, as
// long as somebody replaces what breaks.
#include <algorithm>
#include <set>
#include <thread>

#include "base/crc32c.h"
#include "faulty_stream.h"
#include "lanes.h"

namespace hccl::test {
namespace {

using Clock = TcpLane::Clock;

// Two ends of a lane, and whoever replaces connections that either end has lost.
class FaultyLane final : public PathObserver {
 public:
  FaultyLane(size_t num_paths, const Faults& faults, bool checksum) : faults_(faults) {
    std::vector<std::shared_ptr<Stream>> connections[2];
    for (size_t path = 0; path < num_paths; ++path) {
      auto pair = connect();
      for (size_t end : {0, 1}) connections[end].push_back(pair[end]);
    }
    TcpOptions options;
    options.slot_bytes = slot_bytes;
    options.checksum = checksum;
    options.observer = this;
    for (size_t end : {0, 1}) {
      ends[end] = std::make_unique<TcpLane>(static_cast<int>(1 - end), std::move(connections[end]),
                                            options, statistics);
    }
  }

  void lane_wanted(const TcpLane&) override {}
  bool path_lost(const TcpLane&, size_t path) override {
    lost_.insert(path);
    return true;
  }

  void tend() {
    for (auto& end : ends) {
      end->poll();  // what its connections hold back goes out
      end->tend(Clock::now());
    }
    for (size_t path : std::exchange(lost_, {})) {
      auto pair = connect();
      for (size_t end : {0, 1}) ends[end]->adopt(path, pair[end]);
    }
  }

  uint64_t num_faults() const {
    uint64_t count = 0;
    for (const auto& stream : made_) count += stream->num_faults();
    return count;
  }

  Statistics statistics;
  std::unique_ptr<TcpLane> ends[2];

 private:
  std::array<std::shared_ptr<Stream>, 2> connect() {
    std::array<int, 2> sockets = tcp_sockets();
    std::array<std::shared_ptr<Stream>, 2> pair;
    for (size_t end : {0, 1}) {
      made_.push_back(std::make_shared<FaultyStream>(stream_on(sockets[end]), ++seed_, faults_));
      pair[end] = made_.back();
    }
    return pair;
  }

  const Faults faults_;
  uint64_t seed_ = 0;
  std::vector<std::shared_ptr<FaultyStream>> made_;
  std::set<size_t> lost_;
};

const std::vector<size_t> sizes = {0, 1, 63, 88, 500, 2048, 2049, 5000, slot_bytes};

struct Kind {
  const char* name;
  Faults faults;
  bool checksum;
};

Faults all_together() {
  Faults faults;
  faults.delay = faults.drop = faults.duplicate = faults.truncate = faults.reset = 0.005;
  faults.corrupt = 0.01;
  faults.longest_delay_s = 0.002;
  return faults;
}

const Kind kinds[] = {
    {"none", {}, false},
    {"none, checksums", {}, true},
    {"delay", {.delay = 0.02, .longest_delay_s = 0.002}, false},
    {"drop", {.drop = 0.01}, false},
    {"duplicate", {.duplicate = 0.01}, false},
    {"truncate", {.truncate = 0.01}, false},
    {"reset", {.reset = 0.01}, false},
    {"corrupt", {.corrupt = 0.02}, true},
    {"slow", {.bytes_per_second = 200e6}, false},
    {"all together", all_together(), true},
};

void talk(const Kind& kind, size_t num_paths) {
  constexpr uint64_t num_messages = 3000;
  FaultyLane lane(num_paths, kind.faults, kind.checksum);
  Talker left(*lane.ends[0], num_messages, sizes, 20);
  Talker right(*lane.ends[1], num_messages, sizes, 20);
  Patience patience;
  for (;;) {
    bool left_done = left.turn(), right_done = right.turn();
    if (left_done && right_done) break;
    lane.tend();
    patience.turn();
  }
  uint64_t retransmits = 0, reconnects = 0, damaged = 0;
  for (auto& end : lane.ends) {
    for (size_t path = 0; path < num_paths; ++path) {
      retransmits += end->statistics(path)->retransmits.value();
      reconnects += end->statistics(path)->connections.value() - 1;
      damaged += end->statistics(path)->checksum_errors.value();
    }
  }
  std::printf(
      "  %zu paths: %zu faults, %zu messages repeated, %zu connections replaced, "
      "%zu damaged frames\n",
      num_paths, static_cast<size_t>(lane.num_faults()), static_cast<size_t>(retransmits),
      static_cast<size_t>(reconnects), static_cast<size_t>(damaged));
  std::fflush(stdout);
  CHECK((damaged > 0) == (kind.faults.corrupt > 0));
}

HCCL_TEST(messages_survive_every_fault) {
  for (const Kind& kind : kinds) {
    std::printf("%s\n", kind.name);
    for (size_t num_paths : {1, 2, 3}) talk(kind, num_paths);
  }
}

// A payload that was lent stays where it is, whatever becomes of its connection.
HCCL_TEST(a_lent_payload_outlives_its_connection) {
  for (size_t size : {size_t{100}, slot_bytes}) {
    FaultyLane lane(1, {}, false);
    auto payload = payload_of(7, size);
    lane.ends[0]->post_send(header_of(7, size), payload.data());
    const std::byte* lent = nullptr;
    for (Patience patience; lent == nullptr; patience.turn()) {
      if (lane.ends[1]->peek()) lent = lane.ends[1]->lend();
      lane.tend();
    }
    lane.ends[1]->lose(0, "the test says so");
    lane.tend();
    auto later = payload_of(8, size);
    lane.ends[0]->post_send(header_of(8, size), later.data());
    for (int i = 0; i < 100; ++i) lane.tend();
    CHECK(lane.ends[1]->lend() == lent);
    CHECK(std::equal(payload.begin(), payload.end(), lent));
    lane.ends[1]->release();
    Inbox inbox(*lane.ends[1]);
    for (Patience patience; !inbox.take(8, size, How::receive); patience.turn()) {
      lane.ends[0]->flush();
      lane.tend();
    }
  }
}

HCCL_TEST(a_lane_whose_connections_break_before_they_deliver_is_fruitless) {
  struct Watch final : PathObserver {
    void lane_wanted(const TcpLane&) override {}
    bool path_lost(const TcpLane& lane, size_t) override {
      why = lane.why_fruitless();
      return true;
    }
    std::string why;
  } watch;
  Statistics statistics;
  TcpOptions options;
  options.observer = &watch;
  options.path_timeout_s = 0.01;
  TcpLane lane(1, {nullptr}, options, statistics);
  std::vector<std::byte> payload(100'000);
  auto break_often = [&](int times) {
    for (int i = 0; i < times; ++i) {
      std::array<int, 2> sockets = tcp_sockets();
      auto far_end = stream_on(sockets[1]);
      lane.adopt(0, stream_on(sockets[0]));
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      lane.lose(0, "cut");
      far_end->close();
    }
  };
  break_often(5);
  CHECK(watch.why.empty());  // there was nothing to deliver
  lane.post_send({.length = static_cast<uint32_t>(payload.size())}, payload.data());
  break_often(3);
  CHECK(watch.why.empty());
  break_often(1);
  CHECK(watch.why.find("4 connections were made and broke") == 0);
  CHECK(watch.why.find("a message of 100064 bytes") != std::string::npos);
}

HCCL_TEST(crc32c_is_the_published_one) {
  CHECK(crc32c("123456789", 9) == 0xe3069283);
  CHECK(crc32c_by_table("123456789", 9) == 0xe3069283);
  CHECK(crc32c("", 0) == 0);
  auto bytes = payload_of(3, 100000);
  for (size_t size : {1, 7, 8, 9, 4095, 12287, 12288, 12289, 24576, 36865, 99999}) {
    CHECK(crc32c(bytes.data() + 1, size) == crc32c_by_table(bytes.data() + 1, size));
  }
}

}  // namespace
}  // namespace hccl::test
