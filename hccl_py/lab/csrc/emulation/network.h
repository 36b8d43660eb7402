// A network of emulated nodes: one thread that forwards the bytes of their connections, as late as
// the nodes' NICs and links would deliver them.
//
// A rank that connects to a rank of another node gives two sockets to the network (carry()): one
// towards itself, one towards the other rank. The network reads at the rate of the wires. Bytes
// that they cannot take stay in the sender's kernel, which stops the sender as a slow network does.
//
// A cut link drops packets by a socket filter, as a pulled cable does: the ranks' kernels
// retransmit, and receive nothing.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "emulation/flow.h"

namespace hccl {

// The bytes of a wire since the start, headers included.
struct WireTraffic {
  int from = 0;
  int to = 0;          // for a NIC any_node
  bool leaves = true;  // for a NIC whether this is the sending direction
  uint64_t num_bytes = 0;
  double bytes_per_s = 0;
};

class EmulatedNetwork {
 public:
  using Clock = EmulatedWire::Clock;
  using Pair = std::pair<int, int>;  // nodes, lower first
  static constexpr int any_node = -1;

  // `bytes_per_s`: of the NIC of each node, in each direction. `burst_bytes`: bytes that an idle
  // wire takes at once. `links`: rates of pairs that have a link of their own besides the NICs.
  // `latencies_s`: of pairs whose latency is not `latency_s`.
  EmulatedNetwork(int num_nodes, double bytes_per_s, double burst_bytes,
                  const std::map<Pair, double>& links, double latency_s,
                  std::map<Pair, double> latencies_s);
  EmulatedNetwork(const EmulatedNetwork&) = delete;
  EmulatedNetwork& operator=(const EmulatedNetwork&) = delete;
  ~EmulatedNetwork();

  // ---- any thread

  // Carries a connection between a rank of node `from` at socket `here` and one of `to` at `there`.
  // Throws std::invalid_argument for nodes that it does not have.
  void carry(Descriptor here, Descriptor there, int from, int to);
  // Drops everything between two nodes for so long.
  void cut(int one, int other, double seconds);
  std::vector<WireTraffic> traffic();

 private:
  struct EmulatedConnection {
    Descriptor here;
    Descriptor there;
    Pair nodes;
    Flow out;
    Flow back;
    bool is_done() const {
      return out.is_broken() || back.is_broken() || (out.has_ended() && back.has_ended());
    }
  };

  void check_pair(int one, int other) const;
  void post(std::function<void()> command);
  void run();
  void take_commands();
  void add(Descriptor here, Descriptor there, int from, int to);
  std::vector<EmulatedWire*> wires_between(int from, int to);
  // Moves what can be moved. Returns the time of the next turn.
  Clock::time_point turn(Clock::time_point now);
  void end_cuts(Clock::time_point now);
  void sleep(Clock::time_point until);

  struct Nic {
    EmulatedWire out;
    EmulatedWire in;
  };
  // Used by the thread alone; traffic() posts a command to it.
  std::deque<Nic> nics_;
  std::map<Pair, EmulatedWire> links_;  // by direction: sender first
  const double latency_s_;
  const std::map<Pair, double> latencies_s_;
  std::vector<std::unique_ptr<EmulatedConnection>> connections_;
  std::map<Pair, Clock::time_point> cuts_;  // until when

  const Descriptor epoll_;
  const Descriptor timer_;
  const Descriptor bell_;
  std::mutex mutex_;  // guards commands_ and stopping_
  std::deque<std::function<void()>> commands_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hccl
