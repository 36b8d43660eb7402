// Connects communicators of one process to each other, with threads as ranks.
//
// Ranks with the same `nodes` entry share memory. Others use socket pairs, so that both providers and
// every hierarchical plan run without a network.
#pragma once

#include <sys/socket.h>

#include <array>
#include <memory>
#include <vector>

#include "engine/communicator.h"

namespace hccl {

inline std::array<Descriptor, 2> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

inline void connect_loopback(const std::vector<std::shared_ptr<Communicator>>& ranks,
                      const std::vector<int>& nodes, int num_lanes) {
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (size_t b = a + 1; b < ranks.size(); ++b) {
      auto [control_a, control_b] = socket_pair();
      int rank_a = static_cast<int>(a), rank_b = static_cast<int>(b);
      if (nodes[a] == nodes[b]) {
        ranks[a]->add_shm_peer(rank_b, ranks[b]->segment(), duplicate(ranks[b]->doorbell_fd()),
                               std::move(control_a));
        ranks[b]->add_shm_peer(rank_a, ranks[a]->segment(), duplicate(ranks[a]->doorbell_fd()),
                               std::move(control_b));
        const auto& arena_a = ranks[a]->options().arena;
        const auto& arena_b = ranks[b]->options().arena;
        if (arena_a) ranks[b]->set_peer_arena(rank_a, arena_a->window());
        if (arena_b) ranks[a]->set_peer_arena(rank_b, arena_b->window());
        continue;
      }
      TcpConnections to_b, to_a;
      to_b.controls = {std::make_shared<SocketStream>(std::move(control_a))};
      to_a.controls = {std::make_shared<SocketStream>(std::move(control_b))};
      to_b.names = to_a.names = {"loopback"};
      for (int lane = 0; lane < num_lanes; ++lane) {
        auto [end_a, end_b] = socket_pair();
        to_b.lanes.push_back({std::make_shared<SocketStream>(std::move(end_a))});
        to_a.lanes.push_back({std::make_shared<SocketStream>(std::move(end_b))});
      }
      ranks[a]->add_tcp_peer(rank_b, std::move(to_b));
      ranks[b]->add_tcp_peer(rank_a, std::move(to_a));
    }
  }
}

}  // namespace hccl
