// Queue pairs between threads of one process: what the sanitizers are to see. The semantics are
// tested from Python, over every provider (tests/transport/verbs/test_conformance.py).
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "lanes.h"
#include "verbs/software/queue_pair.h"

namespace hccl::test {
namespace {

constexpr uint32_t every_access = access_local_write | access_remote_write | access_remote_read;
constexpr auto patience = std::chrono::seconds(60);

struct End {
  std::shared_ptr<ProtectionDomain> domain = std::make_shared<ProtectionDomain>();
  std::shared_ptr<CompletionQueue> sent = std::make_shared<CompletionQueue>(4096);
  std::shared_ptr<CompletionQueue> received = std::make_shared<CompletionQueue>(4096);
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  MemoryRegion region;
  std::shared_ptr<QueuePair> pair;

  explicit End(const QueuePairAttributes& attributes) {
    region = domain->register_memory(reinterpret_cast<uint64_t>(memory.data()), memory.size(),
                                     every_access);
    pair = std::make_shared<QueuePair>(progress(), domain, sent, received, attributes);
    pair->modify(QueuePairState::init);
  }

  void connect(std::shared_ptr<UnderlyingLane> lane) {
    pair->attach(std::move(lane));
    pair->modify(QueuePairState::rtr);
    pair->modify(QueuePairState::rts);
  }

  ScatterGather piece(size_t offset, size_t length) const {
    return {region.address + offset, static_cast<uint32_t>(length), region.lkey};
  }

  void post_send(Opcode opcode, size_t offset, size_t length, const End& to, uint64_t wr_id = 0) {
    ScatterGather one = piece(offset, length);
    SendRequest request;
    request.wr_id = wr_id;
    request.opcode = opcode;
    request.remote_address = to.region.address + offset;
    request.rkey = to.region.rkey;
    request.pieces = {&one, 1};
    pair->post_send(request);
  }

  void post_recv(size_t offset, size_t length, uint64_t wr_id = 0) {
    ScatterGather one = piece(offset, length);
    pair->post_recv({wr_id, {&one, 1}});
  }

  static Completion take(CompletionQueue& queue) {
    Completion completion;
    CHECK(queue.wait({&completion, 1}, VerbsClock::now() + patience, [] {}) == 1);
    return completion;
  }
};

struct Pair {
  End a, b;
  Pair(std::array<std::shared_ptr<UnderlyingLane>, 2> lanes, const QueuePairAttributes& attributes)
      : a(attributes), b(attributes) {
    a.connect(std::move(lanes[0]));
    b.connect(std::move(lanes[1]));
  }
};

using Connect = std::array<std::shared_ptr<UnderlyingLane>, 2> (*)();
constexpr Connect providers_of_lanes[] = {loopback_underlying_lanes, tcp_underlying_lanes};

// A test over each of them.
#define OVER_EVERY_LANE(name)                                 \
  void name(Connect connect);                                 \
  HCCL_TEST(name) {                                           \
    for (Connect connect : providers_of_lanes) name(connect); \
  }                                                           \
  void name(Connect connect)

std::unique_ptr<Pair> connected(Connect connect, const QueuePairAttributes& attributes = {}) {
  return std::make_unique<Pair>(connect(), attributes);
}

// One thread posts, one takes what was sent, one what was received; both ways at once.
OVER_EVERY_LANE(threads_share_a_queue_pair) {
  constexpr uint64_t count = 3000;
  constexpr size_t size = 200;
  auto ends = connected(connect);
  std::vector<std::thread> threads;
  for (End* end : {&ends->a, &ends->b}) {
    for (uint64_t i = 0; i < 64; ++i) end->post_recv(4096 + i * size, size, i);
  }
  for (auto [from, to] : {std::pair{&ends->a, &ends->b}, std::pair{&ends->b, &ends->a}}) {
    auto under_way = std::make_shared<std::atomic<uint64_t>>(0);
    threads.emplace_back([from, to, under_way] {
      Patience patience_of_poster;
      for (uint64_t i = 0; i < count; ++i) {
        while (under_way->load() >= 64) patience_of_poster.turn();
        ++*under_way;
        from->post_send(Opcode::send, 0, i % size, *to, i);
      }
    });
    threads.emplace_back([from, under_way] {
      for (uint64_t i = 0; i < count; ++i) {
        Completion completion = End::take(*from->sent);
        CHECK(completion.status == Status::success && completion.wr_id == i);
        --*under_way;
      }
    });
    threads.emplace_back([to] {
      for (uint64_t i = 0; i < count; ++i) {
        Completion completion = End::take(*to->received);
        CHECK(completion.status == Status::success && completion.byte_len == i % size);
        if (i + 64 < count) to->post_recv(4096 + (i % 64) * size, size, i + 64);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

OVER_EVERY_LANE(writes_and_reads_cross) {
  auto ends = connected(connect);
  for (int round = 0; round < 8; ++round) {
    for (auto [from, to] : {std::pair{&ends->a, &ends->b}, std::pair{&ends->b, &ends->a}}) {
      // The third quarter is written by one and the fourth read by the other: no byte twice.
      size_t quarter = from->memory.size() / 4;
      size_t mine = from == &ends->a ? 0 : quarter;
      from->post_send(Opcode::rdma_write, mine, quarter, *to);
      from->post_send(Opcode::rdma_read, mine + 2 * quarter, quarter, *to);
    }
    for (End* end : {&ends->a, &ends->b}) {
      for (int i = 0; i < 2; ++i) CHECK(End::take(*end->sent).status == Status::success);
    }
  }
}

OVER_EVERY_LANE(a_revoked_region_is_not_touched) {
  auto ends = connected(connect);
  std::thread reader([&] {
    for (int i = 0; i < 8; ++i) ends->a.post_send(Opcode::rdma_read, 0, 1 << 20, ends->b);
    Status status = Status::success;
    for (int i = 0; i < 8; ++i) {
      Status next = End::take(*ends->a.sent).status;
      CHECK(next == Status::success || next == Status::remote_access_error ||
            next == Status::flushed);
      CHECK(status == Status::success || next == Status::flushed);
      status = next;
    }
  });
  ends->b.domain->deregister_memory(ends->b.region.lkey);
  // From here on the memory is the owner's: address sanitizer sees whoever still reads it.
  std::vector<std::byte>().swap(ends->b.memory);
  reader.join();
}

OVER_EVERY_LANE(closing_while_the_peer_sends) {
  for (int i = 0; i < 20; ++i) {
    auto ends = connected(connect);
    for (int k = 0; k < 32; ++k) ends->a.post_send(Opcode::rdma_write, 0, 50000, ends->b);
    std::thread closer([&] { ends->b.pair->close(); });
    bool failed = false;
    for (int k = 0; k < 32; ++k) {
      bool success = End::take(*ends->a.sent).status == Status::success;
      CHECK(!(failed && success));
      failed |= !success;
    }
    closer.join();
  }
}

}  // namespace
}  // namespace hccl::test
