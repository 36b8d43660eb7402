#include "engine/communicator.h"

#include <algorithm>
#include <stdexcept>

namespace hccl {

namespace {

DriverOptions driver_options(const CommunicatorOptions& options) {
  const SegmentShape& shape = options.segment;
  if (shape.num_channels != options.num_channels + 1 ||
      shape.num_slots < shape.num_local_ranks) {
    throw std::invalid_argument("a segment too small for its channels and ranks");
  }
  return {options.rank,     options.world_size,  options.num_channels,
          shape.slot_bytes, options.local_ranks, options.path_timeout_s};
}

}  // namespace

Communicator::Communicator(const CommunicatorOptions& options,
                           std::shared_ptr<ProgressThread> progress)
    : options_(options),
      segment_(Segment::create(options.segment)),
      driver_(std::make_shared<Driver>(driver_options(options), segment_, std::move(progress))) {
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    outboxes_.push_back(std::make_shared<Outbox>(segment_, channel));
  }
}

int Communicator::local_rank(int rank) const {
  const std::vector<int>& ranks = options_.local_ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

void Communicator::add_shm_peer(int peer, std::shared_ptr<Segment> theirs,
                                Descriptor their_doorbell, Descriptor control) {
  auto bell =
      std::make_shared<Doorbell>(theirs, std::move(their_doorbell), driver_->statistics());
  driver_->add_local_segment(theirs);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    ShmLane::Ends ends{segment_, theirs, local_rank(options_.rank), local_rank(peer), bell, channel};
    lanes.push_back(std::make_unique<ShmLane>(
        peer, ends, outboxes_[static_cast<size_t>(channel)], driver_->statistics()));
  }
  add_peer(peer, std::move(lanes), {std::make_shared<SocketStream>(std::move(control))});
}

void Communicator::set_peer_arena(int peer, std::shared_ptr<ArenaWindow> theirs) {
  for (Channel& channel : driver_->collectives().channels()) {
    static_cast<ShmLane&>(channel.lane(peer)).set_arenas(options_.arena, theirs);
  }
}

void Communicator::add_tcp_peer(int peer, TcpConnections connections) {
  size_t num_paths = connections.names.size();
  auto is_complete = [&](const StreamsByPath& paths) { return paths.size() == num_paths; };
  if (num_paths == 0 || !is_complete(connections.controls) ||
      !std::all_of(connections.lanes.begin(), connections.lanes.end(), is_complete)) {
    throw std::invalid_argument("a control connection and one per lane on every named path");
  }
  TcpOptions options;
  options.slot_bytes = options_.segment.slot_bytes;
  options.checksum = options_.checksum;
  options.path_timeout_s = options_.path_timeout_s;
  options.names = connections.names;
  options.observer = &driver_->connections().path_observer();
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<TcpLane*> added;
  for (StreamsByPath& paths : connections.lanes) {
    auto lane = std::make_unique<TcpLane>(peer, std::move(paths), options, driver_->statistics());
    added.push_back(lane.get());
    lanes.push_back(std::move(lane));
    ++options.lane;
  }
  add_peer(peer, std::move(lanes), std::move(connections.controls));
  driver_->connections().add_tcp_lanes(peer, std::move(added));
}

void Communicator::add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes,
                            StreamsByPath controls) {
  std::vector<Channel>& channels = driver_->collectives().channels();
  if (lanes.size() != channels.size() + 1) {
    throw std::invalid_argument("one lane per channel and one for point-to-point");
  }
  Connections& connections = driver_->connections();
  connections.add(peer, std::move(controls));
  for (size_t c = 0; c < lanes.size(); ++c) {
    auto& its = c < channels.size() ? channels[c].lanes() : driver_->point_to_point().lanes();
    connections.watch_lane(*lanes[c]);
    its[static_cast<size_t>(peer)] = std::move(lanes[c]);
  }
}

void Communicator::set_checks(bool checks) {
  for (Channel& channel : driver_->collectives().channels()) channel.set_checks(checks);
}

void Communicator::abort(const std::string& reason, Cause cause) {
  Failure failure = observed(cause, options_.rank);
  failure.reason = reason;
  driver_->abort(std::move(failure));
}

}  // namespace hccl
