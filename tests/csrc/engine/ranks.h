// Threads as ranks: communicators of one process, and hand-written plans for them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/communicator.h"
#include "lanes.h"

namespace hccl::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline void no_interrupt() {}

inline std::shared_ptr<Plan> one_shot(int me, int n) {
  auto plan = std::make_shared<Plan>();
  plan->data_chunks = 1;
  for (int peer = 0; peer < n; ++peer) {
    if (peer != me) plan->peers.push_back(peer);
  }
  ChunkRef all{Buffer::data, 0, 1, -1};
  if (n > 1) {
    plan->ops.push_back({OpKind::send, 0, n - 1, {}, all});
    plan->ops.push_back({OpKind::recv_reduce, 0, n - 1, all, {}});
  }
  plan->validate(me, n);
  return plan;
}

inline std::shared_ptr<Plan> mesh(int me, int n) {
  auto plan = std::make_shared<Plan>();
  plan->data_chunks = n;
  for (int peer = 0; peer < n; ++peer) {
    if (peer != me) plan->peers.push_back(peer);
  }
  auto chunk = [](int i) { return ChunkRef{Buffer::data, i, i + 1, -1}; };
  for (int i = 0; i < n - 1; ++i) {
    plan->ops.push_back({OpKind::send, i, 1, {}, chunk(plan->peers[static_cast<size_t>(i)])});
  }
  if (n > 1) {
    plan->ops.push_back({OpKind::recv_reduce, 0, n - 1, chunk(me), {}});
    plan->ops.push_back({OpKind::send, 0, n - 1, {}, chunk(me)});
  }
  for (int i = 0; i < n - 1; ++i) {
    plan->ops.push_back({OpKind::recv, i, 1, chunk(plan->peers[static_cast<size_t>(i)]), {}});
  }
  plan->validate(me, n);
  return plan;
}

struct World {
  std::shared_ptr<ProgressThread> progress = std::make_shared<ProgressThread>();
  std::vector<std::shared_ptr<Communicator>> ranks;
  std::vector<int> controls;  // one end of the control connection of each pair of ranks
  static constexpr int num_channels = 2;

  // `nodes[r]`: ranks with equal entries share memory, others use socket pairs, so that both
  // providers and every hierarchical plan run without a network.
  explicit World(const std::vector<int>& nodes) {
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      CommunicatorOptions options;
      options.rank = static_cast<int>(rank);
      options.world_size = static_cast<int>(nodes.size());
      options.num_channels = num_channels;
      for (size_t other = 0; other < nodes.size(); ++other) {
        if (nodes[other] == nodes[rank]) options.local_ranks.push_back(static_cast<int>(other));
      }
      int local = static_cast<int>(options.local_ranks.size());
      options.num_slots = 2 * local;
      ranks.push_back(Communicator::create(options, progress));
    }
    for (size_t a = 0; a < ranks.size(); ++a) {
      for (size_t b = a + 1; b < ranks.size(); ++b) {
        nodes[a] == nodes[b] ? share_memory(a, b) : connect_sockets(a, b);
      }
    }
  }

  ~World() {
    for (auto& rank : ranks) rank->close();
    progress->stop();
  }

  int size() const { return static_cast<int>(ranks.size()); }

  // Runs `body(rank)` on a thread for every rank.
  void run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void share_memory(size_t a, size_t b) {
    std::array<int, 2> control = unix_sockets();
    controls.push_back(control[0]);
    for (auto [me, peer, fd] : {std::tuple{a, b, control[0]}, std::tuple{b, a, control[1]}}) {
      ranks[me]->add_shm_peer(static_cast<int>(peer), ranks[peer]->segment(),
                              duplicate(ranks[peer]->doorbell_fd()), Descriptor(fd), nullptr);
    }
  }

  void connect_sockets(size_t a, size_t b) {
    TcpConnections ends[2];
    std::array<int, 2> control = unix_sockets();
    controls.push_back(control[0]);
    for (size_t end : {0, 1}) {
      ends[end].controls = {stream_on(control[end])};
      ends[end].names = {"loopback"};
    }
    for (int lane = 0; lane <= num_channels; ++lane) {
      std::array<int, 2> pair = unix_sockets();
      for (size_t end : {0, 1}) ends[end].lanes.push_back({stream_on(pair[end])});
    }
    ranks[a]->add_tcp_peer(static_cast<int>(b), std::move(ends[0]));
    ranks[b]->add_tcp_peer(static_cast<int>(a), std::move(ends[1]));
  }
};

inline Failure failure_of(Communicator& communicator, const RequestPtr& request,
                          const Interrupt& interrupt = no_interrupt) {
  try {
    communicator.run(request, interrupt);
  } catch (const CommunicatorFailed& error) {
    return *error.failure;
  }
  return {};
}

inline Cause cause_of(Communicator& communicator, const RequestPtr& request) {
  return failure_of(communicator, request).cause;
}

inline Deadline in(milliseconds time) { return Clock::now() + time; }

// Whether it becomes true in time, with nobody waiting in the engine.
template <typename Condition>
bool eventually(Condition condition, milliseconds time = seconds(20)) {
  for (Deadline until = in(time); Clock::now() < until; std::this_thread::yield()) {
    if (condition()) return true;
  }
  return condition();
}

inline RequestPtr all_reduce(std::shared_ptr<Plan> plan, std::vector<float>& data,
                             milliseconds timeout = seconds(60)) {
  auto request = std::make_shared<Request>();
  request->deadline = in(timeout);
  request->plan = plan;
  request->call.plan = plan.get();
  request->call.data = {reinterpret_cast<std::byte*>(data.data()), data.size()};
  request->call.dtype = DType::float32;
  request->call.fingerprint = uint64_t{1} << 16;
  return request;
}

inline RequestPtr transfer(RequestKind kind, std::vector<std::byte>& data, int peer, uint64_t tag,
                           milliseconds timeout = seconds(60)) {
  auto request = std::make_shared<Request>();
  request->kind = kind;
  request->deadline = in(timeout);
  request->address = data.data();
  request->num_bytes = data.size();
  request->peer = peer;
  request->tag = tag;
  return request;
}

}  // namespace hccl::test
