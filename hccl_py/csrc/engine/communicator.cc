#include "engine/communicator.h"

#include <algorithm>
#include <stdexcept>

namespace hccl {

namespace {

// How long a rank that closes waits for peers of other nodes to have received everything.
constexpr double longest_delivery_s = 2;

}  // namespace

std::shared_ptr<Communicator> Communicator::create(const CommunicatorOptions& options,
                                                   std::shared_ptr<ProgressThread> progress) {
  std::shared_ptr<Communicator> made(new Communicator(options, std::move(progress)));
  made->self_ = made;
  return {made.get(), [made](Communicator*) { made->close(); }};
}

Communicator::Communicator(const CommunicatorOptions& options,
                           std::shared_ptr<ProgressThread> progress)
    : options_(options),
      segment_(Segment::create({static_cast<int>(options.local_ranks.size()),
                                options.num_channels + 1, options.num_slots, options.slot_bytes})),
      progress_thread_(std::move(progress)),
      doorbell_(new_event()),
      connections_(options.world_size, options.local_ranks, options.path_timeout_s, failures_),
      collectives_(options.rank, options.world_size, options.num_channels, options.slot_bytes,
                   recorder_, statistics_),
      point_to_point_(options.rank, options.world_size, options.slot_bytes, recorder_, statistics_) {
  connections_.watch_bell(doorbell_.get());
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    outboxes_.push_back(std::make_shared<Outbox>(segment_, channel));
  }
}

// ---------------------------------------------------------------- connecting

int Communicator::local_rank(int rank) const {
  const std::vector<int>& ranks = options_.local_ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void Communicator::add_shm_peer(int peer, std::shared_ptr<Segment> theirs,
                                Descriptor their_doorbell, Descriptor control,
                                std::shared_ptr<ArenaWindow> memory) {
  auto bell = std::make_shared<Doorbell>(theirs, std::move(their_doorbell), statistics_);
  local_segments_.push_back(theirs);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    ShmLane::Ends ends{segment_, theirs, local_rank(options_.rank), local_rank(peer), bell, channel};
    const auto& outbox = outboxes_[static_cast<size_t>(channel)];
    auto lane = std::make_unique<ShmLane>(peer, ends, outbox, statistics_);
    if (channel < options_.num_channels) lane->set_arenas(options_.arena, memory);
    lanes.push_back(std::move(lane));
  }
  add_peer(peer, std::move(lanes), {std::make_shared<SocketStream>(std::move(control))});
}

void Communicator::add_tcp_peer(int peer, TcpConnections connections) {
  size_t num_paths = connections.names.size();
  auto is_complete = [&](const StreamsByPath& paths) { return paths.size() == num_paths; };
  if (num_paths == 0 || !is_complete(connections.controls) ||
      !std::all_of(connections.lanes.begin(), connections.lanes.end(), is_complete)) {
    throw std::invalid_argument("a control connection and one per lane on every named path");
  }
  TcpOptions options;
  options.slot_bytes = options_.slot_bytes;
  options.checksum = options_.checksum;
  options.path_timeout_s = options_.path_timeout_s;
  options.names = connections.names;
  options.observer = &connections_.path_observer();
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<TcpLane*> added;
  for (StreamsByPath& paths : connections.lanes) {
    auto lane = std::make_unique<TcpLane>(peer, std::move(paths), options, statistics_);
    added.push_back(lane.get());
    lanes.push_back(std::move(lane));
    ++options.lane;
  }
  add_peer(peer, std::move(lanes), std::move(connections.controls));
  connections_.add_tcp_lanes(peer, std::move(added));
}

void Communicator::add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes,
                            StreamsByPath controls) {
  std::vector<Channel>& channels = collectives_.channels();
  if (lanes.size() != channels.size() + 1) {
    throw std::invalid_argument("one lane per channel and one for point-to-point");
  }
  connections_.add(peer, std::move(controls));
  for (size_t c = 0; c < lanes.size(); ++c) {
    auto& its = c < channels.size() ? channels[c].lanes() : point_to_point_.lanes();
    connections_.watch_lane(*lanes[c]);
    its[static_cast<size_t>(peer)] = std::move(lanes[c]);
  }
}

void Communicator::set_checks(bool checks) {
  for (Channel& channel : collectives_.channels()) channel.set_checks(checks);
}

// ---------------------------------------------------------------- closing

void Communicator::close(const std::string& error, const Interrupt& interrupt) {
  if (driver_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    // A signal handler, inside the very call that it ends.
    close_afterwards_ = true;
    return ask_to_stop(observed(Cause::closed, options_.rank), ask_close);
  }
  for (;;) {
    Submissions::Closing closing = submissions_.try_close();
    if (closing == Submissions::Closing::closed_before) return;
    if (closing == Submissions::Closing::drives) break;
    ask_to_stop(observed(Cause::closed, options_.rank), ask_close);
    wake();
  }
  if (has_calls()) {
    failures_.end(observed(Cause::closed, options_.rank));
    stop_moving();
    release_if_ended();
  }
  std::exception_ptr interruption;
  try {
    if (!failures_.has_ended()) deliver_rest(interrupt);
  } catch (...) {
    interruption = std::current_exception();
  }
  connections_.say_goodbye(submissions_.sequence(), error);
  connections_.close();
  collectives_.close();
  point_to_point_.close();
  local_segments_.clear();
  if (interruption) std::rethrow_exception(interruption);
}

// Waits until the kernels of peers of other nodes have all that was sent, for a limited time: a socket
// that is closed while the peer still writes to it takes back what is on its way.
void Communicator::deliver_rest(const Interrupt& interrupt) {
  double limit_s = std::min(options_.path_timeout_s, longest_delivery_s);
  Deadline until = Clock::now() + duration_of(limit_s);
  Deadline next_signals = Clock::now() + signal_period;
  while (!connections_.deliver() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (Clock::now() < next_signals) continue;
    interrupt();
    next_signals = Clock::now() + signal_period;
  }
}

}  // namespace hccl
