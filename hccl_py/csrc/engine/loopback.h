// Communicators of one process connected to each other: threads as ranks, for tests and simulation.
#pragma once

#include <memory>
#include <vector>

namespace hccl {

class Communicator;

// Connects ranks 0..n-1. Ranks with the same `nodes` entry share memory, others talk over socket
// pairs, so that both providers and every hierarchical plan run without a network.
void connect_loopback(const std::vector<std::shared_ptr<Communicator>>& ranks,
                      const std::vector<int>& nodes, int num_lanes);

}  // namespace hccl
