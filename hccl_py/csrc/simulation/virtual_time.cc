#include "simulation/virtual_time.h"

#include <algorithm>
#include <tuple>

namespace hccl::simulation {

namespace {

constexpr uint64_t events_between_checks = 1 << 20;
constexpr int64_t many_messages = 20'000;  // of a tile

bool comes_later(const auto& one, const auto& other) {
  return std::tie(one.at, one.thread_us, one.memory_us) >
         std::tie(other.at, other.thread_us, other.memory_us);
}

int64_t key_of(int from, int to) { return (static_cast<int64_t>(from) << 32) | to; }

uint64_t order_of(int local_rank, int message) {
  return (static_cast<uint64_t>(local_rank) << 32) + static_cast<uint32_t>(message + 1);
}

bool is_coarse(const Programs& programs, const std::vector<int>& simulated) {
  int64_t messages = 0;
  for (int rank : simulated) messages += static_cast<int64_t>(programs.of(rank).peers.size());
  return messages / 2 > many_messages;  // sent and received
}

}  // namespace

VirtualTime::VirtualTime(World world, Programs programs, std::vector<int> simulated, Calls calls)
    : world_(std::move(world)),
      programs_(std::move(programs)),
      calls_(calls),
      num_tiles_(calls.num_tiles),
      steadiness_(static_cast<int>(simulated.size()), is_coarse(programs_, simulated),
                  calls.patience_messages),
      num_lane_channels_(std::min(num_channels, calls.num_tiles)) {
  size_t num_ranks = world_.node_of.size(), num_lanes = 0;
  bool is_folded = simulated.size() < num_ranks;
  ranks_.reserve(simulated.size());
  stands_for_.resize(num_ranks);
  for (int number : simulated) {
    Rank& rank = ranks_.emplace_back(&pool_);
    rank.number = number;
    rank.local_rank = world_.local_rank[number];
    rank.machine = world_.machine_of[world_.node_of[number]];
    rank.program = &programs_.of(number);
    rank.first_lane = num_lanes;
    num_lanes += rank.program->sources.size();
    stands_for_[number] = static_cast<int>(ranks_.size()) - 1;
  }
  if (is_folded) {
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      stands_for_[rank] = programs_.index(static_cast<int>(rank));
    }
  }
  lanes_.resize(num_lanes * num_lane_channels_);
  for (int cores : world_.cores) machines_.push_back({cores, cores > 0, 0.0, {}});
  // Calls before this one have used the bursts up.
  bool is_used = calls_.num_calls > 1;
  size_t num_nodes = world_.machine_of.size();
  for (bool local : {false, true}) {
    const Link& of = link(local);
    if (of.wire_us_per_mib == 0) continue;
    bool is_pair = of.wiring == Wiring::pair;
    size_t count = of.wiring == Wiring::node ? num_nodes : is_pair ? num_lanes : num_ranks;
    wires_[local].out.assign(count, is_used ? of.burst_us : 0.0);
    if (!is_pair) wires_[local].in = wires_[local].out;
  }
  has_node_link_.resize(num_nodes);
  for (const NodeLink& one : world_.node_links) {
    node_links_[key_of(one.from, one.to)] = {one.us_per_mib, 0.0};
    has_node_link_[one.from] = true;
  }
}

std::optional<Stuck> VirtualTime::run(const std::function<void()>& check) {
  for (Rank& rank : ranks_) begin_call(rank, 0.0);
  for (uint64_t count = 1; !events_.is_empty(); ++count) {
    Event event = events_.take_next();
    if (event.what >= 0) {
      wake(ranks_[event.what], event.at);
    } else {
      leave(~event.what, event.at);
    }
    if (count % events_between_checks == 0) check();
  }
  std::optional<Stuck> stuck;
  for (const Rank& rank : ranks_) {
    if (static_cast<int>(rank.ended_us.size()) == calls_.num_calls) continue;
    if (stuck) {
      ++stuck->num_others;
      continue;
    }
    stuck = Stuck{rank.number, -1, 0};
    for (const Channel& channel : rank.channels) {
      if (channel.is_running && stuck->op < 0) stuck->op = channel.at;
    }
  }
  return stuck;
}

std::vector<std::vector<double>> VirtualTime::ended_us() const {
  std::vector<std::vector<double>> ended;
  for (const Rank& rank : ranks_) ended.push_back(rank.ended_us);
  return ended;
}

std::vector<int64_t> VirtualTime::num_messages() const {
  std::vector<int64_t> counts;
  for (const Rank& rank : ranks_) counts.push_back(rank.num_messages);
  return counts;
}

// ---- calls and tiles

void VirtualTime::begin_call(Rank& rank, double now) {
  rank.channels_left = 0;
  for (int number = 0; number < std::min(num_channels, num_tiles_); ++number) {
    ++rank.channels_left;
    begin_tile(rank.channels[number], number);
  }
  rank.busy_until = now + world_.late_us[rank.number];
  push_run(rank, rank.busy_until);
}

void VirtualTime::begin_tile(Channel& channel, int tile) {
  channel.tile = tile;
  channel.at = 0;
  channel.missing = no_message;
  channel.is_running = true;
  channel.is_last = tile == num_tiles_ - 1;
}

void VirtualTime::end_tile(Rank& rank, int number, double at) {
  Channel& channel = rank.channels[number];
  if (calls_.patience_messages > 0 && calls_.num_calls == 1) {
    int index = static_cast<int>(&rank - ranks_.data());
    num_tiles_ = steadiness_.note({channel.tile, index, at}, num_tiles_, num_sent_);
  }
  int tile = channel.tile + num_channels;
  if (tile < num_tiles_) {
    begin_tile(channel, tile);
    return;
  }
  channel.is_running = false;
  --rank.channels_left;
  end_call_if_done(rank, at);
}

void VirtualTime::end_call_if_done(Rank& rank, double at) {
  if (rank.channels_left > 0) return;
  for (const Channel& channel : rank.channels) {
    if (!channel.unsent.empty()) return;
  }
  auto done = [&] { return static_cast<int>(rank.ended_us.size()) == calls_.num_calls; };
  if (done()) return;
  rank.ended_us.push_back(at);
  if (!done()) begin_call(rank, at);
}

// ---- the thread of a rank

// Has the rank looked at; a look that comes earlier sees to the later ones.
void VirtualTime::push_run(Rank& rank, double at) {
  if (rank.look_at <= at) return;
  rank.look_at = at;
  int index = static_cast<int>(&rank - ranks_.data());
  events_.push(at, order_of(rank.local_rank, no_message), index);
}

void VirtualTime::wake(Rank& rank, double now) {
  if (now != rank.look_at) return;  // an earlier look has seen to it
  rank.look_at = never;
  if (rank.busy_until > now) {
    push_run(rank, rank.busy_until);
    return;
  }
  Machine& machine = machines_[rank.machine];
  if (!machine.has_turns) {
    look(rank, now);
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
    Rank& next = ranks_[machine.queue.front()];
    machine.queue.pop_front();
    next.is_queued = false;
    if (look(next, now)) {
      next.is_running = true;
      --machine.free_cores;
    }
  }
}

// Runs what can be run; true if anything was.
bool VirtualTime::look(Rank& rank, double now) {
  for (int turn = 0; turn < num_channels; ++turn) {
    int number = (rank.current + turn) % num_channels;
    if (!rank.channels[number].is_running) continue;
    if (auto end = go_on(rank, number, now)) {
      rank.current = number;
      rank.busy_until = std::max(*end, rank.busy_until);
      push_run(rank, rank.busy_until);
      return true;
    }
  }
  double next_at = never;
  for (const Channel& channel : rank.channels) {
    if (!channel.arrived.empty()) next_at = std::min(next_at, channel.arrived.front().at);
  }
  if (next_at != never && next_at > now) push_run(rank, next_at);
  return false;
}

// Runs ops until one must wait; returns when the last one ends, nothing if none could run.
std::optional<double> VirtualTime::go_on(Rank& rank, int number, double now) {
  Channel& channel = rank.channels[number];
  const std::vector<Op>& ops = rank.program->ops;
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
    const Op& op = ops[channel.at];
    if (op.kind == OpKind::send) {
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

// Shared memory writes a payload once, for all its readers.
double VirtualTime::send(Rank& rank, int number, const Op& op, double at) {
  Channel& channel = rank.channels[number];
  int index = static_cast<int>(&rank - ranks_.data());
  double size = mib(op, channel.is_last);
  bool is_written = false;
  rank.num_messages += op.num_peers;
  num_sent_ += op.num_peers;
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    int peer = programs_.peer(rank.number, message);
    bool local = is_local(rank.number, peer);
    double moved = local && is_written ? 0.0 : size;
    is_written |= local;
    const Link& way = link(local);
    at = spend(rank, at,
               {way.message_us + way.us_per_mib * moved, world_.memory_us_per_mib * moved});
    size_t place = lane_of(standing_for(peer), rank.program->slot_of[message], number);
    Lane& lane = lanes_[place];
    Sent sent{at, index, message, static_cast<uint8_t>(number), channel.is_last};
    if (lane.in_flight < way.capacity && !lane.has_waiting) {
      enter(lane, sent);
    } else {
      lane.has_waiting = true;
      waiting_[place].push_back(sent);
      ++channel.unsent[channel.at];
    }
  }
  ++channel.at;
  return at;
}

std::optional<double> VirtualTime::take(Rank& rank, int number, const Op& op, double at) {
  Channel& channel = rank.channels[number];
  if (!channel.unsent.empty() && overwrites_unsent(rank, channel, channel.at)) return std::nullopt;
  if (channel.missing == no_message) await(rank, number, op);
  int before = channel.missing;
  auto& arrived = channel.arrived;
  while (channel.missing > 0 && !arrived.empty() && arrived.front().at <= at) {
    std::pop_heap(arrived.begin(), arrived.end(), comes_later<Arrival, Arrival>);
    Arrival next = arrived.back();
    arrived.pop_back();
    at = spend(rank, at, {next.thread_us, next.memory_us});
    --channel.missing;
  }
  if (channel.missing > 0) return channel.missing < before ? std::optional(at) : std::nullopt;
  double size = mib(op, channel.is_last), reduced = size * op.num_peers;
  if (op.kind == OpKind::copy) {
    at = spend(rank, at, {world_.reduce_us_per_mib * size, world_.memory_us_per_mib * size});
  } else if (op.kind == OpKind::recv_reduce) {
    double thread_us = world_.reduce_us_per_mib * reduced + world_.result_us_per_mib * size;
    at = spend(rank, at, {thread_us, world_.memory_us_per_mib * reduced});
  }
  ++channel.at;
  channel.missing = no_message;
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    size_t lane = lane_of(rank, rank.program->slot_of[message], number);
    --lanes_[lane].in_flight;
    if (lanes_[lane].has_waiting) make_room(lane, at);
  }
  return at;
}

void VirtualTime::await(Rank& rank, int number, const Op& op) {
  Channel& channel = rank.channels[number];
  channel.missing = op.num_peers;
  double size = mib(op, channel.is_last);
  for (int message = op.first; message < op.first + op.num_peers; ++message) {
    size_t place = lane_of(rank, rank.program->slot_of[message], number);
    Lane& lane = lanes_[place];
    if (lane.num_arrivals == 0) {
      lane.is_awaited = true;
      continue;
    }
    bool local = is_local(rank.number, programs_.peer(rank.number, message));
    Spent spent = spent_on(op, size, local);
    channel.arrived.push_back({lane.arrival, spent.thread_us, spent.memory_us});
    std::push_heap(channel.arrived.begin(), channel.arrived.end(), comes_later<Arrival, Arrival>);
    if (--lane.num_arrivals > 0) {
      auto more = more_arrivals_.find(place);
      lane.arrival = more->second.front();
      more->second.pop_front();
      if (more->second.empty()) more_arrivals_.erase(more);
    }
  }
}

// Whether an op overwrites what an earlier send has not sent. Scratch is the same memory in every
// tile, so there a later send may be of the tile before.
bool VirtualTime::overwrites_unsent(const Rank& rank, const Channel& channel, int op) const {
  const std::vector<Op>& ops = rank.program->ops;
  const Op& mine = ops[op];
  for (const auto& [index, count] : channel.unsent) {
    const Op& sent = ops[index];
    bool overlaps = sent.space == mine.space && sent.begin < mine.end && mine.begin < sent.end;
    if (sent.space && overlaps && (mine.space == Programs::scratch || index < op)) return true;
  }
  return false;
}

// Returns when the thread is done, which the memory of the machine may hold up.
double VirtualTime::spend(const Rank& rank, double at, const Spent& spent) {
  if (spent.memory_us == 0) return at + spent.thread_us;
  double& clear_at = machines_[rank.machine].memory_clear_at;
  clear_at = std::max(clear_at, at) + spent.memory_us;
  return std::max(at + spent.thread_us, clear_at);
}

// Returns what it costs to take a message. A reduction reads what shared memory holds where it is.
VirtualTime::Spent VirtualTime::spent_on(const Op& op, double mib, bool is_local) const {
  double moved = is_local && op.kind == OpKind::recv_reduce ? 0.0 : mib;
  const Link& of = link(is_local);
  return {of.message_us + of.us_per_mib * moved, world_.memory_us_per_mib * moved};
}

// ---- messages

void VirtualTime::enter(Lane& lane, const Sent& sent) {
  ++lane.in_flight;
  const Rank& sender = ranks_[sent.rank];
  int peer = programs_.peer(sender.number, sent.message);
  bool local = is_local(sender.number, peer);
  bool has_wire = link(local).wire_us_per_mib > 0;
  if (has_wire || (!local && has_node_link_[world_.node_of[sender.number]])) {
    sent_now_.push_back(sent);
  } else {
    arrive(sent, sent.at + link(local).latency_us);
  }
}

void VirtualTime::push_leaving() {
  if (sent_now_.empty()) return;
  if (unused_leaving_.empty()) {
    unused_leaving_.push_back(static_cast<int>(leaving_.size()));
    leaving_.push_back({std::pmr::vector<Sent>(&pool_)});
  }
  int index = unused_leaving_.back();
  unused_leaving_.pop_back();
  leaving_[index].messages.swap(sent_now_);
  leaving_[index].next = 0;
  push_next(index);
}

// Waits for the next message that leaves.
void VirtualTime::push_next(int leaving) {
  Leaving& all = leaving_[leaving];
  if (all.next == all.messages.size()) {
    all.messages.clear();
    unused_leaving_.push_back(leaving);
    return;
  }
  const Sent& sent = all.messages[all.next];
  events_.push(sent.at, order_of(ranks_[sent.rank].local_rank, sent.message), ~leaving);
}

// Each wire begins with what the one before lets through.
double VirtualTime::pass(double& clear_at, double busy_us, double burst_us, double begin,
                         double& end) {
  clear_at = std::max(clear_at, begin) + busy_us;
  double out = clear_at - burst_us;
  end = std::max(end, out);
  return std::max(begin, out - busy_us);
}

void VirtualTime::leave(int leaving, double now) {
  Sent sent = leaving_[leaving].messages[leaving_[leaving].next++];
  const Rank& sender = ranks_[sent.rank];
  const Op& op = sender.program->ops[sender.program->op_of[sent.message]];
  int peer = programs_.peer(sender.number, sent.message);
  Rank& receiver = standing_for(peer);
  bool local = is_local(sender.number, peer);
  const Link& of = link(local);
  double size = mib(op, sent.is_last), begin = now, end = now;
  if (of.wire_us_per_mib > 0) {
    double busy_us = of.wire_us_per_mib * size;
    Wires& wires = wires_[local];
    if (of.wiring == Wiring::pair) {
      size_t slot = receiver.first_lane + sender.program->slot_of[sent.message];
      begin = pass(wires.out[slot], busy_us, of.burst_us, begin, end);
    } else {
      bool is_node = of.wiring == Wiring::node;
      int out = is_node ? world_.node_of[sender.number] : sender.number;
      int in = is_node ? world_.node_of[receiver.number] : receiver.number;
      begin = pass(wires.out[out], busy_us, of.burst_us, begin, end);
      begin = pass(wires.in[in], busy_us, of.burst_us, begin, end);
    }
  }
  int here = world_.node_of[sender.number];
  if (!local && has_node_link_[here]) {
    auto found = node_links_.find(key_of(here, world_.node_of[peer]));
    if (found != node_links_.end()) {
      auto& [us_per_mib, clear_at] = found->second;
      pass(clear_at, us_per_mib * size, 0.0, begin, end);
    }
  }
  arrive(sent, end + of.latency_us);
  push_next(leaving);
}

void VirtualTime::make_room(size_t lane, double at) {
  auto found = waiting_.find(lane);
  Sent sent = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) {
    waiting_.erase(found);
    lanes_[lane].has_waiting = false;
  }
  sent.at = at;
  enter(lanes_[lane], sent);
  Rank& sender = ranks_[sent.rank];
  Channel& channel = sender.channels[sent.channel];
  auto unsent = channel.unsent.find(sender.program->op_of[sent.message]);
  if (--unsent->second == 0) {
    channel.unsent.erase(unsent);
    push_run(sender, at);
    end_call_if_done(sender, at);
  }
}

void VirtualTime::arrive(const Sent& sent, double at) {
  const Rank& sender = ranks_[sent.rank];
  int peer = programs_.peer(sender.number, sent.message);
  Rank& receiver = standing_for(peer);
  size_t place = lane_of(receiver, sender.program->slot_of[sent.message], sent.channel);
  Lane& lane = lanes_[place];
  if (!lane.is_awaited) {
    if (lane.num_arrivals++ == 0) {
      lane.arrival = at;
    } else {
      more_arrivals_[place].push_back(at);
    }
    return;
  }
  lane.is_awaited = false;
  Channel& channel = receiver.channels[sent.channel];
  const Op& op = receiver.program->ops[channel.at];
  Spent spent = spent_on(op, mib(op, channel.is_last), is_local(sender.number, peer));
  channel.arrived.push_back({at, spent.thread_us, spent.memory_us});
  std::push_heap(channel.arrived.begin(), channel.arrived.end(), comes_later<Arrival, Arrival>);
  push_run(receiver, at);
}

}  // namespace hccl::simulation
