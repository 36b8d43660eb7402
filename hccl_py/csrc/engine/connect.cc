// How a communicator is made, and gets its lanes to each peer.
#include <algorithm>
#include <stdexcept>

#include "engine/communicator.h"

namespace hccl {

namespace {

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

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
      board_(segment_, place_of(options.rank, options.local_ranks), options.world_size, distance_,
             statistics_),
      collectives_(options.rank, options.world_size, options.num_channels, options.slot_bytes,
                   distance_, recorder_, statistics_),
      point_to_point_(options.rank, options.world_size, options.slot_bytes, recorder_, statistics_),
      cores_(options.rank, segment_) {
  connections_.watch_bell(doorbell_.get());
  collectives_.channels()[0].set_board(board_);
  if (static_cast<int>(options.local_ranks.size()) == options.world_size) {
    collectives_.set_one_node();
  }
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    outboxes_.push_back(std::make_shared<Outbox>(segment_, channel, distance_));
  }
}

void Communicator::add_shm_peer(int peer, std::shared_ptr<Segment> theirs,
                                Descriptor their_doorbell, Descriptor control,
                                std::shared_ptr<ArenaWindow> memory) {
  auto local = [&](int rank) { return place_of(rank, options_.local_ranks); };
  auto bell = std::make_shared<Doorbell>(theirs, std::move(their_doorbell), statistics_);
  cores_.add_peer(peer, theirs);
  if (memory) node_peers_[peer] = {memory, bell};
  board_.add_peer(peer, local(peer), theirs, bell);
  bool may_read = false;
  pid_t process = process_behind(control.get());
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int channel = 0; channel <= options_.num_channels; ++channel) {
    ShmLane::Ends ends{segment_, theirs, local(options_.rank), local(peer), bell, channel};
    const auto& outbox = outboxes_[static_cast<size_t>(channel)];
    auto lane = std::make_unique<ShmLane>(peer, ends, outbox, statistics_);
    if (channel < options_.num_channels) lane->set_arenas(options_.arena, memory);
    lane->take_long_messages();
    may_read |= process != 0 && lane->read_from(process);
    lanes.push_back(std::move(lane));
  }
  collectives_.copy_table().add_peer(may_read);
  add_peer(peer, std::move(lanes), {std::make_shared<SocketStream>(std::move(control))});
}

void Communicator::add_tcp_peer(int peer, TcpConnections connections) {
  size_t num_paths = connections.names.size();
  if (connections.lanes.empty()) {
    connections.lanes.assign(outboxes_.size(), StreamsByPath(num_paths));
  }
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
  options.observer = &connections_;
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
  std::deque<Channel>& channels = collectives_.channels();
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

bool Communicator::map_window(Window& window, int peer, uint64_t num_bytes, uint64_t memory_at,
                              uint64_t signals_at) const {
  auto found = node_peers_.find(peer);
  if (found == node_peers_.end()) return false;
  const NodePeer& at = found->second;
  return window.add_peer(peer, at.memory, at.bell, num_bytes, memory_at, signals_at);
}

void Communicator::open_window(const std::shared_ptr<Window>& window, uint64_t id,
                               bool is_passive) {
  Windows::open(point_to_point_.windows(), *window, id, is_passive);
  if (!is_passive) return;
  progress_thread_->start();
  kick_progress_thread();
}

}  // namespace hccl
