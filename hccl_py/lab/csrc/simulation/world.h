// What a simulation is about: ranks on nodes, and what links and work cost them. Times are in us.
// hccl_py/lab/simulation/programs.py fills it in.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

namespace hccl::simulation {

// Whose a wire is.
enum class Wiring : uint8_t { node, rank, pair };

// What messages of a class of link cost.
struct LinkTimes {
  double latency_us = 0;
  double message_us = 0;  // of a thread, as are the bytes
  double us_per_mib = 0;
  double wire_us_per_mib = 0;  // 0: no wire
  double burst_us = 0;
  Wiring wiring = Wiring::node;
  int capacity = 1;  // messages sent and not taken
};

// A wire between two nodes, in one direction: from, to, us for each MiB.
using NodeLink = std::tuple<int, int, double>;

struct World {
  std::vector<int> node_of;  // by rank, as are the next two
  std::vector<int> local_rank;
  std::vector<double> late_us;
  std::vector<int> machine_of;  // by node
  std::vector<int> cores;       // by machine; 0: a core for each rank
  LinkTimes scale_up, scale_out;
  std::vector<NodeLink> node_links;
  // For each MiB of a message that is reduced, of a result, and of what a thread moves in memory.
  double reduce_us_per_mib = 0, result_us_per_mib = 0, memory_us_per_mib = 0;
};

}  // namespace hccl::simulation
