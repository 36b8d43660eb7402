// Messages in virtual time: over wires, into lanes that have room, to receives that wait.
#include <algorithm>

#include "simulation/virtual_time.h"

namespace hccl::simulation {

void VirtualTime::enter(VirtualLane& lane, const SentMessage& sent) {
  ++lane.in_flight;
  const VirtualRank& sender = ranks_[sent.rank];
  int peer = programs_.peer(sender.number, sent.message);
  bool local = is_local(sender.number, peer);
  bool has_wire = link(local).wire_us_per_mib > 0;
  if (has_wire || !links_clear_.empty() ||
      (!local && has_node_link_[world_.node_of[sender.number]])) {
    sent_now_.push_back(sent);
  } else {
    note(sent, sent.at, sent.at, sent.at + link(local).latency_us, -1);
    arrive(sent, sent.at + link(local).latency_us);
  }
}

void VirtualTime::push_leaving() {
  if (sent_now_.empty()) return;
  if (unused_leaving_.empty()) {
    unused_leaving_.push_back(static_cast<int>(leaving_.size()));
    leaving_.emplace_back();
  }
  int index = unused_leaving_.back();
  unused_leaving_.pop_back();
  leaving_[index].messages.swap(sent_now_);
  leaving_[index].next = 0;
  push_next(index);
}

// Adds the event at which the next of these messages leaves.
void VirtualTime::push_next(int leaving) {
  Leaving& all = leaving_[leaving];
  if (all.next == all.messages.size()) {
    all.messages.clear();
    unused_leaving_.push_back(leaving);
    return;
  }
  const SentMessage& sent = all.messages[all.next];
  push(sent.at, order_of(ranks_[sent.rank].local_rank, sent.message), ~leaving);
}

// Returns when a wire begins to send a message; `begin`: when the wire before it does.
double VirtualTime::pass(double& clear_at, double busy_us, double burst_us, double begin,
                         double& end) {
  clear_at = std::max(clear_at, begin) + busy_us;
  double out = clear_at - burst_us;
  end = std::max(end, out);
  return std::max(begin, out - busy_us);
}

// Takes a message over the next link of its route. A link takes messages in the order in which they
// come to it, and the link behind it begins when it does.
void VirtualTime::cross(SentMessage sent, int peer, double now) {
  const VirtualRank& sender = ranks_[sent.rank];
  const std::vector<int>& route = world_.routes.at({sender.number, peer});
  double size = mib(sender.program->ops[sender.program->op_of[sent.message]], sent.is_last);
  int here = route[sent.hop];
  double end = std::max(sent.end, now);
  double begin = pass(links_clear_[here], world_.link_us_per_mib[here] * size, 0.0, now, end);
  if (records_) {
    note(sent, begin, links_clear_[here], end, here);
    rows_before_.resize(happened_.size(), no_message);
    rows_before_.back() = sent.row;
    sent.row = static_cast<int64_t>(happened_.size()) - 1;
  }
  if (static_cast<size_t>(++sent.hop) < route.size()) {
    sent.at = begin;
    sent.end = end;
    sent_now_.push_back(sent);
    push_leaving();
    return;
  }
  double arrives = end + link(is_local(sender.number, peer)).latency_us;
  for (int64_t row = sent.row; row >= 0; row = rows_before_[static_cast<size_t>(row)]) {
    std::get<2>(happened_[static_cast<size_t>(row)]) = arrives;
  }
  arrive(sent, arrives);
}

void VirtualTime::leave(int leaving, double now) {
  SentMessage sent = leaving_[leaving].messages[leaving_[leaving].next++];
  const VirtualRank& sender = ranks_[sent.rank];
  const SimulatedOp& op = sender.program->ops[sender.program->op_of[sent.message]];
  int peer = programs_.peer(sender.number, sent.message);
  VirtualRank& receiver = standing_for(peer);
  if (!links_clear_.empty()) {
    push_next(leaving);
    cross(sent, peer, now);
    return;
  }
  bool local = is_local(sender.number, peer);
  const LinkTimes& of = link(local);
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
  note(sent, begin, end, end + of.latency_us, -1);
  arrive(sent, end + of.latency_us);
  push_next(leaving);
}

void VirtualTime::make_room(size_t lane, double at) {
  auto found = waiting_.find(lane);
  SentMessage sent = found->second.front();
  found->second.pop_front();
  if (found->second.empty()) {
    waiting_.erase(found);
    lanes_[lane].has_waiting = false;
  }
  sent.at = at;
  enter(lanes_[lane], sent);
  VirtualRank& sender = ranks_[sent.rank];
  VirtualChannel& channel = sender.channels[sent.channel];
  auto unsent = channel.unsent.find(sender.program->op_of[sent.message]);
  if (--unsent->second == 0) {
    channel.unsent.erase(unsent);
    push_run(sender, at);
    end_call_if_done(sender, at);
  }
}

void VirtualTime::arrive(const SentMessage& sent, double at) {
  const VirtualRank& sender = ranks_[sent.rank];
  int peer = programs_.peer(sender.number, sent.message);
  VirtualRank& receiver = standing_for(peer);
  size_t place = lane_of(receiver, sender.program->slot_of[sent.message], sent.channel);
  VirtualLane& lane = lanes_[place];
  if (!lane.is_awaited) {
    if (lane.num_arrivals++ == 0) {
      lane.arrival = at;
    } else {
      more_arrivals_[place].push_back(at);
    }
    return;
  }
  lane.is_awaited = false;
  VirtualChannel& channel = receiver.channels[sent.channel];
  const SimulatedOp& op = receiver.program->ops[channel.at];
  Spent spent = spent_on(op, mib(op, channel.is_last), is_local(sender.number, peer));
  channel.arrived.push_back({at, spent.thread_us, spent.memory_us});
  std::push_heap(channel.arrived.begin(), channel.arrived.end(), comes_later);
  push_run(receiver, at);
}

}  // namespace hccl::simulation
