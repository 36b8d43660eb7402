#include "simulation/virtual_time.h"

#include <algorithm>

namespace hccl::simulation {

namespace {

constexpr uint64_t events_between_checks = 1 << 20;
constexpr int64_t many_messages = 20'000;  // in a tile

bool is_coarse(const Programs& programs, const std::vector<int>& simulated) {
  int64_t messages = 0;
  for (int rank : simulated) messages += static_cast<int64_t>(programs.of(rank).peers.size());
  return messages / 2 > many_messages;  // sent and received
}

}  // namespace

VirtualTime::VirtualTime(World world, Programs programs, std::vector<int> simulated, int num_calls,
                         int num_tiles, int64_t exact_messages)
    : world_(std::move(world)),
      programs_(std::move(programs)),
      num_calls_(num_calls),
      num_tiles_(num_tiles),
      may_leave_out_(exact_messages > 0 && num_calls == 1),
      steadiness_(static_cast<int>(simulated.size()), is_coarse(programs_, simulated),
                  exact_messages),
      num_lane_channels_(std::min(num_channels, num_tiles)) {
  size_t num_ranks = world_.node_of.size(), num_lanes = 0;
  bool is_folded = simulated.size() < num_ranks;
  ranks_.reserve(simulated.size());
  stands_for_.resize(num_ranks);
  for (int number : simulated) {
    VirtualRank& rank = ranks_.emplace_back();
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
  // With several calls, the first ones have used the bursts up.
  bool is_used = num_calls_ > 1;
  size_t num_nodes = world_.machine_of.size();
  for (bool local : {false, true}) {
    const LinkTimes& of = link(local);
    if (of.wire_us_per_mib == 0) continue;
    bool is_pair = of.wiring == Wiring::pair;
    size_t count = of.wiring == Wiring::node ? num_nodes : is_pair ? num_lanes : num_ranks;
    wires_[local].out.assign(count, is_used ? of.burst_us : 0.0);
    if (!is_pair) wires_[local].in = wires_[local].out;
  }
  links_clear_.resize(world_.link_us_per_mib.size());
  has_node_link_.resize(num_nodes);
  for (const auto& [from, to, us_per_mib] : world_.node_links) {
    node_links_[key_of(from, to)] = {us_per_mib, 0.0};
    has_node_link_[from] = true;
  }
}

std::optional<Stuck> VirtualTime::run(const std::function<void()>& check) {
  for (VirtualRank& rank : ranks_) begin_call(rank, 0.0);
  for (uint64_t count = 1; !events_.empty(); ++count) {
    VirtualEvent event = events_.top();
    events_.pop();
    if (event.what >= 0) {
      wake(ranks_[event.what], event.at);
    } else {
      leave(~event.what, event.at);
    }
    if (count % events_between_checks == 0) check();
  }
  std::optional<Stuck> stuck;
  for (const VirtualRank& rank : ranks_) {
    if (static_cast<int>(rank.ended_us.size()) == num_calls_) continue;
    if (stuck) {
      ++std::get<2>(*stuck);
      continue;
    }
    auto waits = std::find_if(std::begin(rank.channels), std::end(rank.channels),
                              [](const VirtualChannel& channel) { return channel.is_running; });
    stuck.emplace(rank.number, waits == std::end(rank.channels) ? -1 : waits->at, 0);
  }
  return stuck;
}

std::vector<std::vector<double>> VirtualTime::ended_us() const {
  std::vector<std::vector<double>> ended;
  for (const VirtualRank& rank : ranks_) ended.push_back(rank.ended_us);
  return ended;
}

std::vector<int64_t> VirtualTime::num_messages() const {
  std::vector<int64_t> counts;
  for (const VirtualRank& rank : ranks_) counts.push_back(rank.num_messages);
  return counts;
}

void VirtualTime::begin_call(VirtualRank& rank, double now) {
  rank.channels_left = 0;
  for (int number = 0; number < std::min(num_channels, num_tiles_); ++number) {
    ++rank.channels_left;
    begin_tile(rank.channels[number], number);
  }
  rank.busy_until = now + world_.late_us[rank.number];
  push_run(rank, rank.busy_until);
}

void VirtualTime::begin_tile(VirtualChannel& channel, int tile) {
  channel.tile = tile;
  channel.at = 0;
  channel.missing = no_message;
  channel.is_running = true;
  channel.is_last = tile == num_tiles_ - 1;
}

void VirtualTime::end_tile(VirtualRank& rank, int number, double at) {
  VirtualChannel& channel = rank.channels[number];
  if (may_leave_out_) {
    int index = static_cast<int>(&rank - ranks_.data());
    num_tiles_ = steadiness_.note({channel.tile, index, at}, num_tiles_, num_moved_);
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

void VirtualTime::end_call_if_done(VirtualRank& rank, double at) {
  if (rank.channels_left > 0) return;
  for (const VirtualChannel& channel : rank.channels) {
    if (!channel.unsent.empty()) return;
  }
  auto done = [&] { return static_cast<int>(rank.ended_us.size()) == num_calls_; };
  if (done()) return;
  rank.ended_us.push_back(at);
  if (!done()) begin_call(rank, at);
}

}  // namespace hccl::simulation
