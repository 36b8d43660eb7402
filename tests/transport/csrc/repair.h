// Ranks as threads over several TCP connections that break, and who replaces them.
#pragma once

#include <atomic>

#include "base/faulty_stream.h"
#include "lanes.h"
#include "ranks.h"

namespace hccl::test {

// Ends of a new connection, faulty or not. The control link has none but real sockets.
inline std::array<std::shared_ptr<Stream>, 2> tcp_streams(const Faults* faults, int index) {
  static std::atomic<uint64_t> seed{1};
  std::array<int, 2> sockets = tcp_sockets();
  std::array<std::shared_ptr<Stream>, 2> streams;
  for (size_t end : {0, 1}) {
    streams[end] = stream_on(sockets[end]);
    if (faults && index > 0) {
      streams[end] = std::make_shared<FaultyStream>(streams[end], ++seed, *faults);
    }
  }
  return streams;
}

// Connects ranks of different nodes by TCP, not by the socket pairs of connect_loopback.
inline void connect_by_tcp(const std::vector<std::shared_ptr<Communicator>>& ranks,
                           const std::vector<int>& nodes, int num_lanes, int num_paths,
                           const Faults* faults) {
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (size_t b = a + 1; b < ranks.size(); ++b) {
      Communicator* ends[] = {ranks[a].get(), ranks[b].get()};
      const int peers[] = {static_cast<int>(b), static_cast<int>(a)};
      if (nodes[a] == nodes[b]) {
        std::array<int, 2> control = tcp_sockets();
        for (size_t end : {0, 1}) {
          ends[end]->add_shm_peer(peers[end], ends[1 - end]->segment(),
                                  duplicate(ends[1 - end]->doorbell_fd()),
                                  Descriptor(control[end]));
        }
        continue;
      }
      TcpConnections connections[2];
      for (TcpConnections& side : connections) {
        side.lanes.resize(static_cast<size_t>(num_lanes));
        for (int path = 0; path < num_paths; ++path) {
          side.names.push_back("path " + std::to_string(path));
        }
      }
      for (int index = 0; index <= num_lanes; ++index) {
        for (int path = 0; path < num_paths; ++path) {
          auto streams = tcp_streams(faults, index);
          for (size_t end : {0, 1}) {
            TcpConnections& side = connections[end];
            auto& list = index ? side.lanes[static_cast<size_t>(index) - 1] : side.controls;
            list.push_back(streams[end]);
          }
        }
      }
      for (size_t end : {0, 1}) ends[end]->add_tcp_peer(peers[end], std::move(connections[end]));
    }
  }
}

// Replaces what breaks while it lives, as the higher rank of a pair reports it.
class Repairer {
 public:
  Repairer(const std::vector<std::shared_ptr<Communicator>>& ranks, const Faults* faults)
      : ranks_(ranks), faults_(faults), thread_([this] { run(); }) {}
  ~Repairer() {
    stopping_ = true;
    thread_.join();
  }
  uint64_t num_replaced() const { return num_replaced_; }

 private:
  void run() {
    for (; !stopping_; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (const Broken& place : ranks_[rank]->take_broken()) {
          if (static_cast<size_t>(place.peer) < rank) replace(rank, place);
        }
      }
    }
  }

  void replace(size_t rank, const Broken& place) {
    auto streams = tcp_streams(faults_, place.index);
    size_t peer = static_cast<size_t>(place.peer);
    ranks_[rank]->replace_connection(place, streams[0]);
    ranks_[peer]->replace_connection({static_cast<int>(rank), place.index, place.path}, streams[1]);
    ++num_replaced_;
  }

  const std::vector<std::shared_ptr<Communicator>>& ranks_;
  const Faults* const faults_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> num_replaced_{0};
  std::thread thread_;
};

}  // namespace hccl::test
