// Lanes over queue pairs that go on over their next path: nothing is lost, doubled or out of order.
#include <cstring>
#include <deque>
#include <random>

#include "lanes.h"
#include "scripted_queue_pair.h"

namespace hccl::test {
namespace {

using scripted::ScriptedQueuePair;

// Two or three paths of software queue pairs, and two ends that send each other messages.
struct Conversation {
  static constexpr uint64_t num_messages = 400;

  Conversation(size_t num_paths, size_t num_ways, size_t min_registered_bytes)
      : num_ways_(num_ways) {
    std::vector<std::vector<UnderlyingLanes>> under(num_paths);
    for (auto& path : under) {
      for (size_t way = 0; way < num_ways; ++way) path.push_back(loopback_underlying_lanes());
    }
    ends = queue_pair_paths(std::move(under), min_registered_bytes);
  }
  LaneOverQueuePair& lane(bool is_right) {
    return static_cast<LaneOverQueuePair&>(is_right ? *ends->right : *ends->left);
  }
  // Breaks a queue pair of a path, at one end.
  void fail(bool is_right, size_t path, size_t way) {
    ends->pairs[is_right][path * num_ways_ + way]->stop();
  }
  void tend() {
    for (bool is_right : {false, true}) lane(is_right).tend(VerbsClock::now());
  }

  std::unique_ptr<Ends> ends;

 private:
  const size_t num_ways_;
};

HCCL_TEST(messages_arrive_once_and_in_order_whenever_a_path_fails) {
  const std::vector<size_t> sizes = {0, 1, 999, 1000, 5000, slot_bytes};
  uint64_t num_again = 0;
  for (unsigned seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    // Queue pairs of software have each a protection domain of its own: what is registered has one
    // way.
    size_t num_paths = 2 + seed % 2, num_ways = seed < 12 ? 1 + seed / 2 % 3 : 1;
    Conversation c(num_paths, num_ways, seed < 12 ? 0 : 1000);
    Talker left(c.lane(false), c.num_messages, sizes, 4),
        right(c.lane(true), c.num_messages, sizes, 4);
    size_t num_failed = 0;
    unsigned fails_at = random() % 40;
    Patience patience;
    for (unsigned turn = 0; !(left.turn() & right.turn()); ++turn) {
      if (turn % 4 == 0) c.tend();
      if (num_failed + 1 < num_paths && turn >= fails_at) {
        c.fail(random() % 2, num_failed++, random() % num_ways);
        fails_at = turn + random() % 40;
      }
      patience.turn();
    }
    CHECK(num_failed + 1 == num_paths);
    num_again += c.ends->statistics.verbs.retries.value();
  }
  CHECK(num_again > 0);
}

HCCL_TEST(what_has_left_its_sender_is_sent_again_without_another_call) {
  Conversation c(2, 1, 0);
  Lane &left = *c.ends->left, &right = *c.ends->right;
  auto first = payload_of(0, 100), second = payload_of(1, 100);
  left.post_send(header_of(0, 100), first.data());
  Inbox inbox(right);
  Patience patience;
  while (!inbox.take(0, 100, How::lend)) {
    left.flush();
    patience.turn();
  }
  // Stopped at the receiver: the message meets a queue pair that takes nothing more.
  c.fail(true, 0, 0);
  left.post_send(header_of(1, 100), second.data());
  CHECK(left.settled() && left.completed() == 2 && !left.delivered());
  std::fill(second.begin(), second.end(), std::byte{0xee});
  while (!inbox.take(1, 100, How::receive)) {
    c.tend();
    patience.turn();
  }
  while (!left.delivered()) {
    c.tend();
    patience.turn();
  }
  CHECK(c.ends->statistics.verbs.retries.value() == 1);
}

HCCL_TEST(the_last_path_ends_the_lane_and_the_observer_hears_of_the_others) {
  Conversation c(3, 1, 0);
  std::vector<std::string> heard;
  c.lane(false).set_observer([&](size_t from, size_t to, const std::string& why) {
    heard.push_back(std::to_string(from) + "-" + std::to_string(to) + " " + why);
  });
  for (uint64_t path = 0; path < 3; ++path) {
    auto payload = payload_of(path, 100);
    c.ends->left->post_send(header_of(path, 100), payload.data());
    Inbox inbox(*c.ends->right);
    Patience patience;
    while (!inbox.take(path, 100, How::lend)) {
      c.ends->left->flush();
      c.tend();
      patience.turn();
    }
    c.fail(false, path, 0);
  }
  CHECK(throws<LaneError>([&] {
    for (Patience patience;; patience.turn()) c.ends->left->peek();
  }));
  CHECK(heard.size() == 2);
  CHECK(heard[0].starts_with("0-1 its queue pair failed with status"));
  CHECK(heard[1].starts_with("1-2 its queue pair failed with status"));
}

// A lane on two scripted paths. The peer has advertised on the first one only.
struct Scripted {
  Statistics statistics;
  std::shared_ptr<ScriptedQueuePair> first = std::make_shared<ScriptedQueuePair>(),
                                     second = std::make_shared<ScriptedQueuePair>();
  std::unique_ptr<LaneOverQueuePair> lane = scripted::make_lane({{first}, {second}}, statistics);
  scripted::Advertisement theirs;
  std::deque<std::vector<std::byte>> payloads;

  Scripted() {
    const auto* mine = reinterpret_cast<const scripted::Advertisement*>(first->advertised_to) - 1;
    theirs = *mine;
    first->advertise(theirs);
    CHECK(lane->peek() == nullptr);
  }
  void send(uint32_t length) {
    payloads.emplace_back(length);  // lent until it has left
    lane->post_send(scripted::header_of(length), payloads.back().data());
  }
  void leave() {
    first->fail(Status::retry_exceeded);
    lane->tend(VerbsClock::now());  // it is stopped,
    lane->tend(VerbsClock::now());  // and has returned its RECVs
  }
  void arrive(uint64_t released, uint64_t whole) {
    theirs.released = released;
    theirs.whole = whole;
    second->advertise(theirs);
    lane->tend(VerbsClock::now());
  }
  std::vector<uint64_t> numbers_sent_on_second() const {
    std::vector<uint64_t> numbers;
    for (const SendRequest& request : second->sent) {
      if (request.opcode == Opcode::rdma_write_with_imm && request.imm & scripted::message_bit) {
        numbers.push_back(request.imm >> 16 & 0x1fff);
      }
    }
    return numbers;
  }
  bool fails_with(const char* text) {
    try {
      lane->peek();
    } catch (const LaneError& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    }
    return false;
  }
};

HCCL_TEST(only_what_the_peer_lacks_goes_out_again) {
  Scripted s;
  for (uint32_t i = 0; i < 5; ++i) s.send(i);
  s.leave();
  CHECK(s.second->sent.size() == 1);  // its advertisement
  s.send(5);
  CHECK(s.second->sent.size() == 1 && !s.lane->flushed());
  // It has released one, and has the third and the fifth.
  s.arrive(1, 0b1010);
  CHECK((s.numbers_sent_on_second() == std::vector<uint64_t>{1, 3}));
  CHECK(s.lane->flush() && s.lane->flushed());
  CHECK((s.numbers_sent_on_second() == std::vector<uint64_t>{1, 3, 5}));
  CHECK(s.statistics.verbs.retries.value() == 2 && s.statistics.verbs.messages.value() == 6);
}

HCCL_TEST(the_advertisement_says_what_came_and_the_old_path_counts_until_it_is_empty) {
  Scripted s;
  s.first->deliver(1, scripted::header_of(0), sizeof(Header));
  s.first->fail(Status::retry_exceeded);
  s.first->deliver(2, scripted::header_of(0),
                   sizeof(Header));  // it came before the queue pair stopped
  s.lane->tend(VerbsClock::now());
  CHECK(s.second->sent.empty());
  s.lane->tend(VerbsClock::now());
  CHECK(s.second->sent.size() == 1);
  const auto* mine = reinterpret_cast<const scripted::Advertisement*>(s.second->advertised_to) - 1;
  CHECK(mine->released == 0 && mine->whole == 0b110);
  s.arrive(0, 0);
  s.second->deliver(0, scripted::header_of(0), sizeof(Header));
  for (int i = 0; i < 3; ++i) {
    CHECK(s.lane->peek() != nullptr);
    s.lane->release();
  }
}

HCCL_TEST(a_path_that_the_peer_has_left_is_left) {
  Scripted s;
  std::string heard;
  s.lane->set_observer([&](size_t, size_t, const std::string& why) { heard = why; });
  s.send(7);
  s.arrive(0, 0);  // the peer's advertisement on the second path; our queue pair does not know
  s.lane->tend(VerbsClock::now());
  CHECK((s.numbers_sent_on_second() == std::vector<uint64_t>{0}));
  CHECK(heard == "the peer has left it");
}

HCCL_TEST(an_announced_message_that_was_not_read_comes_again) {
  Scripted s;
  s.first->deliver(0, scripted::header_of(16), sizeof(Header) + sizeof(Note), scripted::announced);
  CHECK(s.lane->peek() != nullptr && s.lane->peek()->length == 16);
  std::vector<std::byte> target(16);
  CHECK(!s.lane->receive(target.data()));
  CHECK(s.first->sent.back().opcode == Opcode::rdma_read);
  uint64_t read_id = s.first->sent.back().wr_id;
  s.first->fail(Status::retry_exceeded, Opcode::rdma_read);
  s.first->completions.back().wr_id = read_id;
  s.lane->tend(VerbsClock::now());
  s.lane->tend(VerbsClock::now());
  const auto* mine = reinterpret_cast<const scripted::Advertisement*>(s.second->advertised_to) - 1;
  CHECK(mine->released == 0 && mine->whole == 0);
  s.arrive(0, 0);
  // The engine goes on with the message that it was looking at.
  CHECK(s.lane->peek()->length == 16 && !s.lane->receive(target.data()));
  auto payload = payload_of(1, 16);
  std::memcpy(s.second->slot(0) + sizeof(Header), payload.data(), 16);
  s.second->deliver(0, scripted::header_of(16), sizeof(Header) + 16);
  CHECK(s.lane->receive(target.data()) && target == payload);
  s.lane->release();
  CHECK(s.lane->peek() == nullptr);
}

HCCL_TEST(a_message_that_comes_again_must_be_the_same) {
  Scripted s;
  s.first->deliver(0, scripted::header_of(16), sizeof(Header) + sizeof(Note), scripted::announced);
  CHECK(s.lane->peek() != nullptr);
  s.leave();
  s.arrive(0, 0);
  s.second->deliver(0, scripted::header_of(17), sizeof(Header) + 17);
  std::vector<std::byte> target(17);
  CHECK(throws<LaneError>([&] { s.lane->receive(target.data()); }));
}

HCCL_TEST(a_peer_that_tells_of_messages_that_were_never_sent_fails_the_lane) {
  for (auto [released, whole] :
       {std::pair<uint64_t, uint64_t>{3, 0}, {0, 0b100}, {2, 1}, {0, ~0ull}}) {
    Scripted s;
    s.send(1);
    s.send(1);
    s.leave();
    s.arrive(released, whole);
    CHECK(s.fails_with("never sent"));
  }
}

HCCL_TEST(what_the_peer_did_wrong_is_not_tried_again_elsewhere) {
  Scripted s;
  s.first->fail(Status::remote_access_error);
  CHECK(s.fails_with("the test says so") && s.second->sent.empty());
}

HCCL_TEST(a_device_that_refuses_requests_is_left) {
  Scripted s;
  s.first->gone = true;
  s.send(3);
  s.lane->tend(VerbsClock::now());
  s.lane->tend(VerbsClock::now());
  s.arrive(0, 0);
  CHECK((s.numbers_sent_on_second() == std::vector<uint64_t>{0}));
}

HCCL_TEST(a_port_that_is_down_is_left_only_for_another_path) {
  Scripted s;
  s.first->its_trouble = "its port is down";
  s.lane->tend(VerbsClock::now());
  s.lane->tend(VerbsClock::now());
  CHECK(s.second->sent.size() == 1);
  s.second->its_trouble = "its port is down";
  s.arrive(0, 0);
  s.send(3);
  CHECK(s.lane->flushed() && s.lane->peek() == nullptr);
}

HCCL_TEST(a_path_that_failed_while_it_was_idle_is_passed_over) {
  Scripted s;
  s.second->fail(Status::flushed, Opcode::recv);
  s.lane->tend(VerbsClock::now());
  s.first->fail(Status::retry_exceeded);
  CHECK(s.fails_with("the test says so") && s.second->sent.empty());
}

HCCL_TEST(a_device_that_returns_no_recv_is_closed_before_its_lane_goes_on) {
  Scripted s;
  s.first->num_taken = s.first->num_recvs;
  s.leave();
  CHECK(s.second->sent.empty() && !s.first->closed);
  for (Patience patience; s.second->sent.empty(); patience.turn()) s.lane->tend(VerbsClock::now());
  CHECK(s.first->closed);
  // What it says now is too late: the peer has heard that the message did not come, and sends it
  // again.
  s.first->deliver(0, scripted::header_of(0), sizeof(Header));
  s.lane->tend(VerbsClock::now());
  s.arrive(0, 0);
  CHECK(s.lane->peek() == nullptr);
  s.second->deliver(0, scripted::header_of(0), sizeof(Header));
  CHECK(s.lane->peek() != nullptr);
}

}  // namespace
}  // namespace hccl::test
