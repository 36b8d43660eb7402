// Runs ranks in virtual time, under the engine's rules.
//
// - A rank is one thread. It runs the ops of a channel until one must wait, then those of the
//   other.
// - A send costs the thread time for each message, one by one, and completes in the background. A
//   message leaves when its lane has room, passes its wires, and arrives after the latency.
// - A receive takes its messages as they arrive, then reduces. (The engine reads them in rank
//   order, which ranks that are alike do not have in common.)
// - An op that overwrites a chunk waits until earlier sends of it have left.
// - If ranks share cores, a thread runs one op at a time, and threads get cores first come, first
//   served.
//
// Events at one time are ordered by what ranks that are alike have in common: local rank, then
// message. So simulating some ranks for all gives the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "simulation/programs.h"
#include "simulation/steadiness.h"

namespace hccl::simulation {

inline constexpr int no_message = -1;

// Who shares a wire: the ranks of a node, no others, or a pair of ranks.
enum class Wiring : uint8_t { node, rank, pair };

// The costs of messages on a class of link.
struct LinkTimes {
  double latency_us = 0;
  double message_us = 0;       // of a thread
  double us_per_mib = 0;       // of a thread
  double wire_us_per_mib = 0;  // 0: no wire
  double burst_us = 0;
  Wiring wiring = Wiring::node;
  int capacity = 1;  // messages of a lane that may be sent and not taken
};

// A wire between two nodes, in one direction: from, to, us for each MiB.
using NodeLink = std::tuple<int, int, double>;

// Ranks on nodes, and the costs of links and work, in us. `programs.py` fills it in.
struct World {
  std::vector<int> node_of;  // by rank, as are the next two
  std::vector<int> local_rank;
  std::vector<double> late_us;
  std::vector<int> machine_of;  // by node
  std::vector<int> cores;       // by machine; 0: a core for each rank
  LinkTimes scale_up, scale_out;
  std::vector<NodeLink> node_links;
  // Of a network of links, us for each MiB on each, and by sender and receiver the links that a
  // message crosses. They replace wires and node links.
  std::vector<double> link_us_per_mib;
  std::map<std::pair<int, int>, std::vector<int>> routes;
  // For each MiB of a message that is reduced, of a result, and of data that a thread moves.
  double reduce_us_per_mib = 0, result_us_per_mib = 0, memory_us_per_mib = 0;
};

// What happened: begin, end, arrival, rank, op, tile, peer, link. A row with a peer is a message on
// a link of the network (-1: on other wires), one without is work of the rank's thread.
using Happening = std::tuple<double, double, double, int, int, int, int, int>;

// A rank that waits for ever, its op (-1: none), and the number of others that do.
using Stuck = std::tuple<int, int, int>;

class VirtualTime {
 public:
  // `simulated`: all ranks, or those of the first group of `programs`, each of which represents the
  // ranks at its place in the other groups. `num_calls`: back to back, of `num_tiles` each.
  // `exact_messages`: in a single call, tiles that repeat themselves are left out, and after so
  // many messages the rest of the tiles; 0: no tile is left out.
  VirtualTime(World world, Programs programs, std::vector<int> simulated, int num_calls,
              int num_tiles, int64_t exact_messages);

  // Runs all calls. Calls `check` now and then, which may throw. Returns a rank if plans deadlock.
  std::optional<Stuck> run(const std::function<void()>& check);

  // The ends of the calls of each simulated rank, and the number of messages that it sent.
  std::vector<std::vector<double>> ended_us() const;
  std::vector<int64_t> num_messages() const;
  const Steadiness& steadiness() const { return steadiness_; }
  // Keeps all that happens, for `happened`.
  void record() { records_ = true; }
  const std::vector<Happening>& happened() const { return happened_; }

 private:
  static constexpr int num_channels = 2;

  // A message that a receive may take: when it arrives, and its cost for the thread and the memory.
  struct Arrival {
    double at, thread_us, memory_us;
  };
  struct Spent {
    double thread_us, memory_us;
  };
  // Messages from one rank to another on a channel, first in, first out.
  struct VirtualLane {
    double arrival = 0;  // of the first message; those of later ones are in more_arrivals_
    uint32_t num_arrivals = 0;
    uint8_t in_flight = 0;  // sent and not taken
    bool is_awaited = false, has_waiting = false;
  };
  struct VirtualChannel {
    int tile = 0, at = 0;
    int missing = no_message;  // messages that a receive still has to take; no_message: not begun
    bool is_running = false, is_last = false;
    std::vector<Arrival> arrived;         // a heap
    std::unordered_map<int, int> unsent;  // by op, the messages that have no room yet
  };
  struct VirtualRank {
    VirtualChannel channels[num_channels];
    int number = 0, local_rank = 0, machine = 0;
    const RankProgram* program = nullptr;
    size_t first_lane = 0;
    int current = 0;  // channel
    double busy_until = 0, wakes_at = never;
    bool is_running = false, is_queued = false;
    int channels_left = 0;
    std::vector<double> ended_us;
    int64_t num_messages = 0;
  };
  struct SharedCores {
    int free_cores;
    bool has_turns;  // whether ranks share cores
    double memory_clear_at = 0;
    std::deque<int> queue;
  };
  // A message of a simulated rank on a channel, before a link of its route.
  struct SentMessage {
    double at;
    int rank, message, tile;
    uint8_t channel, is_last;
    uint16_t hop = 0;
    double end = 0;            // of its time on the links before
    int64_t row = no_message;  // in happened_, of the link before
  };
  // Messages that leave one after the other: one event at a time keeps the heap small.
  struct Leaving {
    std::vector<SentMessage> messages;
    size_t next = 0;
  };
  struct VirtualEvent {
    double at;
    uint64_t order;   // see order_of
    uint64_t number;  // in the order of pushing, which decides between equal ones
    int what;         // the rank to run, or ~index of the Leaving whose next message leaves

    bool operator<(const VirtualEvent& other) const {  // reversed: the earliest is on top
      return std::tie(at, order, number) > std::tie(other.at, other.order, other.number);
    }
  };
  static constexpr double never = std::numeric_limits<double>::infinity();

  // Orders events at one time: a rank runs before its messages leave.
  static uint64_t order_of(int local_rank, int message) {
    return (static_cast<uint64_t>(local_rank) << 32) + static_cast<uint32_t>(message + 1);
  }
  static bool comes_later(const Arrival& one, const Arrival& other) {
    return std::tie(one.at, one.thread_us, one.memory_us) >
           std::tie(other.at, other.thread_us, other.memory_us);
  }

  void push(double at, uint64_t order, int what) { events_.push({at, order, num_events_++, what}); }
  void begin_call(VirtualRank& rank, double now);
  void begin_tile(VirtualChannel& channel, int tile);
  void end_tile(VirtualRank& rank, int number, double at);
  void end_call_if_done(VirtualRank& rank, double at);

  // The thread of a rank.
  void push_run(VirtualRank& rank, double at);
  void wake(VirtualRank& rank, double now);
  bool run_channels(VirtualRank& rank, double now);
  std::optional<double> run_ops(VirtualRank& rank, int number, double now);
  double send(VirtualRank& rank, int number, const SimulatedOp& op, double at);
  std::optional<double> take(VirtualRank& rank, int number, const SimulatedOp& op, double at);
  void await(VirtualRank& rank, int number, const SimulatedOp& op);
  bool overwrites_unsent(const VirtualRank& rank, const VirtualChannel& channel, int op) const;
  double spend(const VirtualRank& rank, double at, const Spent& spent);
  Spent spent_on(const SimulatedOp& op, double mib, bool is_local) const;

  // Messages.
  void enter(VirtualLane& lane, const SentMessage& sent);
  void push_leaving();
  void push_next(int leaving);
  void leave(int leaving, double now);
  void make_room(size_t lane, double at);
  void arrive(const SentMessage& sent, double at);
  void cross(SentMessage sent, int peer, double now);
  void note(const VirtualRank& rank, int number, int op, double begin, double end) {
    if (records_ && end > begin) {
      happened_.push_back({begin, end, end, rank.number, op, rank.channels[number].tile, -1, -1});
    }
  }
  void note(const SentMessage& sent, double begin, double end, double arrives, int link) {
    if (!records_) return;
    const VirtualRank& sender = ranks_[sent.rank];
    happened_.push_back({begin, end, arrives, sender.number, sender.program->op_of[sent.message],
                         sent.tile, programs_.peer(sender.number, sent.message), link});
  }
  double pass(double& clear_at, double busy_us, double burst_us, double begin, double& end);
  static int64_t key_of(int from, int to) { return (static_cast<int64_t>(from) << 32) | to; }
  size_t lane_of(const VirtualRank& receiver, int slot, int channel) const {
    return (receiver.first_lane + slot) * num_lane_channels_ + channel;
  }
  double mib(const SimulatedOp& op, bool is_last) const { return op.mib[is_last]; }
  bool is_local(int one, int other) const { return world_.node_of[one] == world_.node_of[other]; }
  const LinkTimes& link(bool is_local) const {
    return is_local ? world_.scale_up : world_.scale_out;
  }
  VirtualRank& standing_for(int rank) { return ranks_[stands_for_[rank]]; }

  World world_;
  Programs programs_;
  int num_calls_;
  int num_tiles_;  // to be run
  bool may_leave_out_;
  Steadiness steadiness_;
  int num_lane_channels_;
  std::vector<VirtualRank> ranks_;
  std::vector<int> stands_for_;  // by rank, the index of the simulated one
  std::vector<SharedCores> machines_;
  std::vector<VirtualLane> lanes_;
  std::unordered_map<size_t, std::deque<double>> more_arrivals_;
  std::unordered_map<size_t, std::deque<SentMessage>> waiting_;  // no room for these yet
  // Wires of the two classes of link: out and in by node or rank, or by lane without its channel.
  struct Wires {
    std::vector<double> out, in;  // when each is clear
  };
  Wires wires_[2];
  std::unordered_map<int64_t, std::pair<double, double>> node_links_;  // us per MiB, clear at
  std::vector<bool> has_node_link_;                                    // by node
  std::vector<double> links_clear_;                                    // of a network
  bool records_ = false;
  std::vector<Happening> happened_;
  std::vector<int64_t> rows_before_;  // by row: that of the same message on the link before
  std::priority_queue<VirtualEvent> events_;
  uint64_t num_events_ = 0;
  int64_t num_moved_ = 0;              // messages sent, and copies
  std::vector<SentMessage> sent_now_;  // by the ops that a rank is running
  std::vector<Leaving> leaving_;
  std::vector<int> unused_leaving_;
};

}  // namespace hccl::simulation
