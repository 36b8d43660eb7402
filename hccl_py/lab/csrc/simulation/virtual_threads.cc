// The threads of ranks in virtual time: they run ops, wait, and take turns on cores.
#include <algorithm>

#include "simulation/virtual_time.h"

namespace hccl::simulation {

// Wakes the rank at that time, unless it wakes earlier.
void VirtualTime::push_run(VirtualRank& rank, double at) {
  if (rank.wakes_at <= at) return;
  rank.wakes_at = at;
  int index = static_cast<int>(&rank - ranks_.data());
  push(at, order_of(rank.local_rank, no_message), index);
}

void VirtualTime::wake(VirtualRank& rank, double now) {
  if (now != rank.wakes_at) return;  // it woke earlier
  rank.wakes_at = never;
  if (rank.busy_until > now) {
    push_run(rank, rank.busy_until);
    return;
  }
  SharedCores& machine = machines_[rank.machine];
  if (!machine.has_turns) {
    run_channels(rank, now);
    return;
  }
  if (rank.is_running) {
    rank.is_running = false;
    ++machine.free_cores;
  }
  if (!rank.is_queued) {
    rank.is_queued = true;
    machine.queue.push_back(static_cast<int>(&rank - ranks_.data()));
  }
  while (machine.free_cores > 0 && !machine.queue.empty()) {
    VirtualRank& next = ranks_[machine.queue.front()];
    machine.queue.pop_front();
    next.is_queued = false;
    if (run_channels(next, now)) {
      next.is_running = true;
      --machine.free_cores;
    }
  }
}

// Runs the ops that can run; returns whether there was one.
bool VirtualTime::run_channels(VirtualRank& rank, double now) {
  for (int turn = 0; turn < num_channels; ++turn) {
    int number = (rank.current + turn) % num_channels;
    if (!rank.channels[number].is_running) continue;
    if (auto end = run_ops(rank, number, now)) {
      rank.current = number;
      rank.busy_until = std::max(*end, rank.busy_until);
      push_run(rank, rank.busy_until);
      return true;
    }
  }
  double next_at = never;
  for (const VirtualChannel& channel : rank.channels) {
    if (!channel.arrived.empty()) next_at = std::min(next_at, channel.arrived.front().at);
  }
  if (next_at != never && next_at > now) push_run(rank, next_at);
  return false;
}

// Runs ops until one must wait; returns the end of the last one, nothing if none could run.
std::optional<double> VirtualTime::run_ops(VirtualRank& rank, int number, double now) {
  VirtualChannel& channel = rank.channels[number];
  const std::vector<SimulatedOp>& ops = rank.program->ops;
  double at = now;
  bool has_moved = false;
  while (channel.is_running) {
    // Ops without elements are left out.
    while (channel.at < static_cast<int>(ops.size()) &&
           mib(ops[channel.at], channel.is_last) == 0) {
      ++channel.at;
    }
    if (channel.at == static_cast<int>(ops.size())) {
      end_tile(rank, number, at);
      has_moved = true;
      continue;
    }
    const SimulatedOp& op = ops[channel.at];
    if (op.kind == SimulatedOpKind::send) {
      at = send(rank, number, op, at);
    } else if (auto end = take(rank, number, op, at)) {
      at = *end;
    } else {
      break;
    }
    has_moved = true;
    if (machines_[rank.machine].has_turns) break;
  }
  push_leaving();
  return has_moved ? std::optional(at) : std::nullopt;
}

// In shared memory a payload is written once for all its readers.
double VirtualTime::send(VirtualRank& rank, int number, const SimulatedOp& op, double at) {
  VirtualChannel& channel = rank.channels[number];
  int index = static_cast<int>(&rank - ranks_.data());
  double size = mib(op, channel.is_last);
  bool is_written = false;
  double began = at;
  rank.num_messages += op.num_peers;
  num_moved_ += op.num_peers;
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    int peer = programs_.peer(rank.number, message);
    bool local = is_local(rank.number, peer);
    double moved = local && is_written ? 0.0 : size;
    is_written |= local;
    const LinkTimes& way = link(local);
    at = spend(rank, at,
               {way.message_us + way.us_per_mib * moved, world_.memory_us_per_mib * moved});
    size_t place = lane_of(standing_for(peer), rank.program->slot_of[message], number);
    VirtualLane& lane = lanes_[place];
    SentMessage sent{
        at, index, message, channel.tile, static_cast<uint8_t>(number), channel.is_last};
    if (lane.in_flight < way.capacity && !lane.has_waiting) {
      enter(lane, sent);
    } else {
      lane.has_waiting = true;
      waiting_[place].push_back(sent);
      ++channel.unsent[channel.at];
    }
  }
  note(rank, number, channel.at, began, at);
  ++channel.at;
  return at;
}

std::optional<double> VirtualTime::take(VirtualRank& rank, int number, const SimulatedOp& op,
                                        double at) {
  VirtualChannel& channel = rank.channels[number];
  if (!channel.unsent.empty() && overwrites_unsent(rank, channel, channel.at)) return std::nullopt;
  if (channel.missing == no_message) await(rank, number, op);
  int before = channel.missing;
  double began = at;
  auto& arrived = channel.arrived;
  while (channel.missing > 0 && !arrived.empty() && arrived.front().at <= at) {
    std::pop_heap(arrived.begin(), arrived.end(), comes_later);
    Arrival next = arrived.back();
    arrived.pop_back();
    at = spend(rank, at, {next.thread_us, next.memory_us});
    --channel.missing;
  }
  if (channel.missing > 0) {
    note(rank, number, channel.at, began, at);
    return channel.missing < before ? std::optional(at) : std::nullopt;
  }
  double size = mib(op, channel.is_last), reduced = size * op.num_peers;
  if (op.kind == SimulatedOpKind::copy) {
    ++num_moved_;
    at = spend(rank, at, {world_.reduce_us_per_mib * size, world_.memory_us_per_mib * size});
  } else if (op.kind == SimulatedOpKind::recv_reduce) {
    double thread_us = world_.reduce_us_per_mib * reduced + world_.result_us_per_mib * size;
    at = spend(rank, at, {thread_us, world_.memory_us_per_mib * reduced});
  }
  note(rank, number, channel.at, began, at);
  ++channel.at;
  channel.missing = no_message;
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    size_t lane = lane_of(rank, rank.program->slot_of[message], number);
    --lanes_[lane].in_flight;
    if (lanes_[lane].has_waiting) make_room(lane, at);
  }
  return at;
}

void VirtualTime::await(VirtualRank& rank, int number, const SimulatedOp& op) {
  VirtualChannel& channel = rank.channels[number];
  channel.missing = op.num_peers;
  double size = mib(op, channel.is_last);
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    size_t place = lane_of(rank, rank.program->slot_of[message], number);
    VirtualLane& lane = lanes_[place];
    if (lane.num_arrivals == 0) {
      lane.is_awaited = true;
      continue;
    }
    bool local = is_local(rank.number, programs_.peer(rank.number, message));
    Spent spent = spent_on(op, size, local);
    channel.arrived.push_back({lane.arrival, spent.thread_us, spent.memory_us});
    std::push_heap(channel.arrived.begin(), channel.arrived.end(), comes_later);
    if (--lane.num_arrivals > 0) {
      auto more = more_arrivals_.find(place);
      lane.arrival = more->second.front();
      more->second.pop_front();
      if (more->second.empty()) more_arrivals_.erase(more);
    }
  }
}

// Whether an op overwrites a chunk that an earlier send has not sent. Scratch is the same memory in
// every tile, so there the send of a later op may belong to the tile before.
bool VirtualTime::overwrites_unsent(const VirtualRank& rank, const VirtualChannel& channel,
                                    int op) const {
  const std::vector<SimulatedOp>& ops = rank.program->ops;
  const SimulatedOp& mine = ops[op];
  for (const auto& [index, count] : channel.unsent) {
    const SimulatedOp& sent = ops[index];
    bool overlaps = sent.space == mine.space && sent.begin < mine.end && mine.begin < sent.end;
    if (sent.space && overlaps && (mine.space == Programs::scratch || index < op)) return true;
  }
  return false;
}

// Returns when the thread is done; the shared memory of the machine may delay it.
double VirtualTime::spend(const VirtualRank& rank, double at, const Spent& spent) {
  if (spent.memory_us == 0) return at + spent.thread_us;
  double& clear_at = machines_[rank.machine].memory_clear_at;
  clear_at = std::max(clear_at, at) + spent.memory_us;
  return std::max(at + spent.thread_us, clear_at);
}

// Returns the cost of taking a message. A reduction reads messages in shared memory without a copy.
VirtualTime::Spent VirtualTime::spent_on(const SimulatedOp& op, double mib, bool is_local) const {
  double moved = is_local && op.kind == SimulatedOpKind::recv_reduce ? 0.0 : mib;
  const LinkTimes& of = link(is_local);
  return {of.message_us + of.us_per_mib * moved, world_.memory_us_per_mib * moved};
}

}  // namespace hccl::simulation
