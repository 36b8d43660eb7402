// That nothing is left undone or told wrong: work that changes hands between threads, deadlines
// next to busy neighbours, closing and aborting at awkward moments, what a peer sends last.
#include <atomic>
#include <cstring>

#include "ranks.h"
#include "wire.h"

namespace hccl::test {
namespace {

HCCL_TEST(a_waiter_that_gives_up_hands_the_work_back) {
  World world({0, 0});
  // Long enough that the waiter gives up before the end, at a moment that is different every time.
  std::vector<std::byte> sent(32 << 20), received(32 << 20);
  for (int i = 0; i < 100; ++i) {
    RequestPtr receive = transfer(RequestKind::recv, received, 1, 1);
    world.ranks[0]->start(receive);
    RequestPtr send = transfer(RequestKind::send, sent, 0, 1);
    world.ranks[1]->start(send);
    // By now the progress thread drives.
    eventually([] { return false; }, milliseconds(1));
    world.ranks[0]->wait(receive, Clock::now() + std::chrono::microseconds(i), no_interrupt);
    CHECK(eventually([&] { return receive->is_done() && send->is_done(); }));
  }
}

// Gives nothing for a while, then a byte at a time, each after as long as that takes.
class SlowStream final : public Stream {
 public:
  SlowStream(Descriptor socket, int num_in_vain, milliseconds per_byte)
      : socket_(std::move(socket)), num_in_vain_(num_in_vain), per_byte_(per_byte) {}
  int fd() const override { return socket_.fd(); }
  size_t send(std::span<const iovec> parts) override { return socket_.send(parts); }
  size_t receive(std::span<const iovec> parts) override {
    if (num_in_vain_ > 0 && num_in_vain_-- > 0) return 0;
    if (per_byte_ == milliseconds{}) return socket_.receive(parts);
    std::this_thread::sleep_for(per_byte_);
    iovec first{parts[0].iov_base, 1};
    return socket_.receive({&first, 1});
  }
  void close() override { socket_.close(); }

 private:
  SocketStream socket_;
  int num_in_vain_;
  const milliseconds per_byte_;
};

// An all_reduce on a host whose cores all have ranks, without a progress thread.
struct Start {
  static constexpr int for_ever = 1 << 30;
  Wire wire{Wire::Lanes::later};
  std::vector<float> data = std::vector<float>(8);
  RequestPtr request = all_reduce(one_shot(0, 2), data);

  Start(int num_in_vain, milliseconds per_byte) {
    wire.progress->stop();
    wire.rank->set_ranks_on_host(2, 2);
    for (size_t lane : {0, 1}) wire.connect<SlowStream>(lane, num_in_vain, per_byte);
    size_t num_bytes = data.size() * sizeof(float);
    wire.send({.fingerprint = request->call.fingerprint | 1,
               .size = num_bytes,
               .length = static_cast<uint32_t>(num_bytes)},
              num_bytes, 0);
    wire.rank->start_moving(request);
  }
};

HCCL_TEST(whoever_starts_a_call_moves_it_where_every_core_has_a_rank) {
  // It may lose its core for longer than it waits for anybody.
  CHECK(eventually([] { return Start(10, milliseconds(0)).request->is_done(); }));
}

HCCL_TEST(whoever_starts_a_call_does_not_wait_for_a_peer_that_does_not_come) {
  CHECK(!Start(Start::for_ever, milliseconds(0)).request->is_done());
}

HCCL_TEST(whoever_starts_a_call_does_not_wait_for_a_slow_wire) {
  Start start(0, milliseconds(1));
  CHECK(!start.request->is_done());
  CHECK(start.wire.rank->wait(start.request, in(seconds(60)), no_interrupt));
}

HCCL_TEST(deadlines_pass_beside_busy_transfers) {
  World world({0, 0});
  // Of different lengths, so that they never end together.
  std::vector<std::byte> nothing(8), data[4] = {std::vector<std::byte>(24 << 20), {}, {}, {}};
  data[1].resize(data[0].size());
  data[2].resize(41 << 20);
  data[3].resize(data[2].size());
  RequestPtr stuck = transfer(RequestKind::recv, nothing, 1, 9, milliseconds(100));
  world.ranks[0]->start(stuck);
  struct Pair {
    RequestPtr send, receive;
  };
  Pair pairs[2];
  for (Deadline until = in(milliseconds(1500)); !stuck->is_done();) {
    CHECK(Clock::now() < until);
    for (uint64_t i : {0, 1}) {
      Pair& pair = pairs[i];
      if (pair.send && !(pair.send->is_done() && pair.receive->is_done())) continue;
      pair = {transfer(RequestKind::send, data[2 * i], 0, i),
              transfer(RequestKind::recv, data[2 * i + 1], 1, i)};
      world.ranks[1]->start(pair.send);
      world.ranks[0]->start(pair.receive);
    }
  }
  CHECK(stuck->failure->cause == Cause::timed_out);
  for (Pair& pair : pairs) {
    CHECK(eventually([&] { return pair.send->is_done() && pair.receive->is_done(); }));
  }
  CHECK(!world.ranks[0]->failures().failure());
}

// Whoever leaves a blocking call takes its buffers along: the engine must be done with them.
HCCL_TEST(an_interrupted_call_is_over_when_it_throws) {
  World world({0, 0});
  Communicator& mine = *world.ranks[0];
  std::vector<float> data(10);
  std::thread driver(
      [&] { CHECK(cause_of(mine, all_reduce(mesh(0, 2), data)) == Cause::interrupted); });
  CHECK(eventually([&] { return mine.sequence() == 1; }));
  struct Interrupted {};
  std::vector<std::byte> bytes(10);
  RequestPtr request = transfer(RequestKind::recv, bytes, 1, 1);
  CHECK(throws<Interrupted>([&] { mine.run(request, [] { throw Interrupted(); }); }));
  CHECK(request->is_done());
  driver.join();
}

HCCL_TEST(a_closed_communicator_is_freed_although_its_thread_sleeps) {
  World world({0, 0});
  std::weak_ptr<Segment> freed[2];
  for (size_t me : {0, 1}) {
    std::vector<std::byte> bytes(8);
    RequestPtr request = transfer(RequestKind::recv, bytes, static_cast<int>(1 - me), 1);
    freed[me] = world.ranks[me]->segment();
    world.ranks[me]->start(request);
    world.ranks[me]->close();
    CHECK(request->is_done());
  }
  world.ranks.clear();
  CHECK(eventually([&] { return freed[0].expired() && freed[1].expired(); }));
}

// The control connection is another one: a goodbye may overtake the last data.
HCCL_TEST(data_that_a_goodbye_overtook_still_arrives) {
  std::vector<std::byte> received(1000);
  Wire wire;
  RequestPtr request = transfer(RequestKind::recv, received, 1, 7);
  wire.rank->start(request);
  wire.say(ControlMessage{});
  CHECK(eventually([&] { return wire.control_is_drained(); }));
  // Long enough to look again after the goodbye, were it to end the call.
  CHECK(!wire.rank->wait(request, in(milliseconds(300)), no_interrupt));
  wire.send({.fingerprint = 7, .size = 1000, .length = 1000, .kind = 1}, 1000);
  CHECK(wire.rank->wait(request, in(seconds(20)), no_interrupt));
  // And without data it is over when the lane ends.
  request = transfer(RequestKind::recv, received, 1, 7);
  wire.rank->start(request);
  wire.close_lanes();
  CHECK(eventually([&] { return request->is_done(); }));
  CHECK(request->failure->cause == Cause::left);
}

HCCL_TEST(malformed_transfers_fail_and_nothing_else) {
  auto header = [](uint16_t kind, uint32_t length, uint64_t id, uint64_t size) {
    return Header{.fingerprint = 7, .id = id, .size = size, .length = length, .kind = kind};
  };
  const Header malformed[] = {
      header(0, 4, 0, 4),                 // of a collective
      header(1, 4, 0, 8),                 // eager, two lengths
      header(1, 20000, 0, 20000),         // eager, too long
      header(2, 4, 1, 100000),            // an announcement with a payload
      header(3, 4, 1, 4),                 // an answer with one
      header(4, 8, 1, 8),                 // a fragment of nothing
      header(4, 8, 1, ~uint64_t{0} - 3),  // a fragment far outside
      header(9, 0, 0, 8),                 // of no known kind
      header(9, 8, 0, 8),
  };
  for (const Header& bad : malformed) {
    Wire wire;
    std::vector<std::byte> bytes(100000);
    RequestPtr request = transfer(RequestKind::recv, bytes, 1, 7);
    wire.rank->start(request);
    // The announcement that a fragment needs; it is number 1.
    if (bad.kind == 4 && bad.size > 8) wire.send(header(2, 0, 1, bytes.size()), 0);
    wire.send(bad, bad.length);
    CHECK(eventually([&] { return request->is_done(); }));
    CHECK(request->failure->cause == Cause::unreachable);
    CHECK(request->failure->error == "a malformed message");
  }
}

}  // namespace
}  // namespace hccl::test
