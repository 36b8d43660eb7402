// The connections of a communicator to all its peers: the set of descriptors that its driver sleeps
// on, the control links, the ends of peers, and broken connections between nodes.
//
// The driver checks the states of peers (peer_state.h) with their deadlines, as it does for calls.
// This class makes their events.
//
// Every pair of ranks has its control connections from the start, because by their end a rank
// detects at once that another one is gone. The data connections between nodes are made when a lane
// first needs them: the lane asks, and the control threads of both ranks make them.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/calls/failure_state.h"
#include "engine/calls/request.h"
#include "engine/connection/control_link.h"
#include "engine/connection/peer_process.h"
#include "engine/connection/peer_state.h"
#include "lanes/tcp.h"
#include "progress/sleep.h"

namespace hccl {

using StreamsByPath = std::vector<std::shared_ptr<Stream>>;

// The connections between this rank and one of another node.
struct TcpConnections {
  std::vector<StreamsByPath> lanes;  // [lane][path]; empty: made when first needed
  StreamsByPath controls;            // [path]
  std::vector<std::string> names;    // of the paths, for people
};

// A connection that broke and may be replaced, or one that a lane needs.
struct BrokenPath {
  int peer = 0;
  int index = 0;  // 0: control, 1 + lane
  int path = 0;
};

class Connections final : public PathObserver {
 public:
  // All important events wake the sleeper; this bounds the delay of a signal, a deadline or a cut.
  static constexpr int longest_sleep_ms = 100;

  Connections(int world_size, std::vector<int> local_ranks, double path_timeout_s,
              FailureState& state);
  ~Connections() override { close(); }

  // ---- connecting; before the first request, from one thread
  void watch_bell(int fd) { watch(fd, bell_tag, EPOLLIN); }
  void add(int peer, StreamsByPath controls);
  void watch_lane(Lane& lane);
  // `lanes` are those of the connections' peer, which add() knows. The first are the driver's.
  void add_tcp_lanes(int peer, std::vector<TcpLane*> lanes);
  void add_locked_lanes(int peer, std::vector<std::unique_ptr<ReplaceableLane>> lanes);

  // ---- driver
  void lane_wanted(const TcpLane& lane) override;
  bool path_lost(const TcpLane& lane, size_t path) override;
  // Waits for events. False if a signal cut it short.
  bool handle_events(int timeout_ms);
  // Checks everything with a deadline: suspects, ending processes, connections that are down.
  void tend(Deadline now);
  // When tend() is due at the latest.
  Deadline next_check() const { return num_unsettled_ > 0 ? next_check_ : Deadline::max(); }
  // A lane to `peer` continues over another device, because `device` failed: `text` is for
  // messages. Kept once for each peer and device, unless the peer has left.
  void note_device_change(int peer, const std::string& device, std::string text);
  // A lane to `peer` broke. Until it is known why, data does not move.
  void suspect(int peer, const std::string& error);
  bool holds_traffic() const { return num_suspects_ > 0; }
  // Whether the end of some peer is not decided yet.
  bool is_unsettled() const { return num_unsettled_ > 0; }
  // Failures that this rank has observed since the last call.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }
  // A call waits for a peer that has left.
  void fail_by_end(int peer, const std::string& error);
  // Ranks of this node that said goodbye. All their earlier messages can be read.
  const std::vector<int>& local_leavers() const { return local_leavers_; }
  // Offers and notes of other threads.
  bool has_offers() const { return num_offers_.load(std::memory_order_seq_cst) > 0; }
  void use_offers();
  // The paths to these ranks that are down or unanswered.
  std::vector<PathTrouble> troubles_with(const std::vector<int>& ranks) const;
  // Records the ranks of other nodes without a control connection at present.
  void measure(CallProgress& progress) const;
  void prepare_sleep(Sleep& sleep);
  // Whether a peer of another node lacks, or may lack, sent data.
  bool owes() const;
  // Flushes sent data. True once the kernels of peers on other nodes have all of it.
  bool deliver();
  // Says goodbye and closes everything.
  void leave(uint64_t sequence, const std::string& error, bool goes_on);

  // ---- any thread
  // Readable when take_broken() or take_wanted() has something new.
  int repair_fd() const { return repair_event_.get(); }
  std::vector<BrokenPath> take_broken();
  // The connections that lanes need for the first time.
  std::vector<BrokenPath> take_wanted();
  // Throws std::invalid_argument where there is no connection to replace.
  void offer(const BrokenPath& path, const std::shared_ptr<Stream>& connection);
  // The host of a rank reported that no process listens there any more.
  void note_refusal(int peer);
  // A lane to a rank cannot be made, although the rank is alive.
  void note_unreachable(int peer, const std::string& why);
  // Changes that note_device_change() kept since the last call.
  std::vector<std::string> take_device_changes();
  // Ranks whose control links have ended: left, died, lost or unreachable.
  std::vector<Failure> ended_peers() const;
  int epoll_fd() const { return epoll_.get(); }
  const std::vector<std::shared_ptr<PathStatistics>>& path_statistics() const { return records_; }

 private:
  // Tags in the epoll set: the bell's, or the rank and, above it, 0 for its control link, 1 + lane,
  // or its process.
  static constexpr uint64_t bell_tag = ~uint64_t{0};
  static constexpr int process_index = std::numeric_limits<int>::max();
  static constexpr int rank_bits = 32;
  static constexpr uint64_t rank_mask = (uint64_t{1} << rank_bits) - 1;
  static constexpr uint32_t stream_events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;

  // A lane with one path, whose connections break under its own lock.
  struct LockedLane {
    std::unique_ptr<ReplaceableLane> lane;
    uint64_t num_lost = 0;  // of its connections, as reported
  };
  struct Peer {
    std::unique_ptr<ControlLink> link;
    // None for this node's ranks, and if a provider makes the connections.
    std::vector<ReplaceableLane*> lanes;
    std::vector<LockedLane> locked_lanes;  // the same, where other threads move them
    PeerState state;
    std::string error;  // of a lane that broke
    // The process of a rank of this node. A child that it forked may hold its connections open.
    std::shared_ptr<const Descriptor> process;
  };
  struct Shape {  // of the connections with a peer of another node
    int num_lanes = 0, num_paths = 0;
  };
  struct SuspectPath {  // broken, but perhaps only because the peer has left
    BrokenPath path;
    Deadline until;
  };

  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool is_local(int rank) const;
  void watch(int fd, uint64_t tag, uint32_t events);
  void watch(int fd, int rank, int index, uint32_t events) {
    watch(fd, static_cast<uint64_t>(index) << rank_bits | static_cast<uint64_t>(rank), events);
  }
  void watch_connection(int rank, int index, int fd) { watch(fd, rank, index, stream_events); }
  void watch_process(int rank);
  void process_ended(int rank);
  void read(int rank);
  void follow(int rank);
  void follow_paths(int rank);
  void drop_paths(Peer& peer);
  static uint64_t made(const Peer& peer);
  static bool awaits_lanes(const Peer& peer);
  static bool is_gone(const Peer& peer);
  void end_lanes(int rank);
  std::optional<PeerState::Action> change(Peer& peer, PeerState::Event event);
  void note_end(int rank, PeerState::Event event, Cause cause, const ProcessEnd& how = {});
  void suspect_path(const BrokenPath& path, uint64_t generation);
  void look_at_locked_lanes(int rank);
  void fail_by_paths(int rank, const std::string& error);
  void settle(int rank, Deadline now);
  void close();
  void count_unsettled();
  static bool is_closing(const Peer& peer, Deadline now);
  void tend_paths(Deadline now);
  void tend_lanes(Deadline now);
  void check_cut(int rank, Deadline now);
  void report_suspects(Deadline now);
  void offer(std::function<void()> use);
  void use(const BrokenPath& broken, std::shared_ptr<Stream> connection);

  const std::vector<int> local_ranks_;
  const double path_timeout_s_;
  const Descriptor epoll_;
  // Complete before the first request.
  std::vector<std::shared_ptr<PathStatistics>> records_;
  std::vector<Shape> shapes_;  // by rank
  bool has_remote_ = false;

  // The driver's.
  std::vector<Peer> peers_;  // by rank
  std::vector<TcpLane*> tcp_lanes_;
  std::vector<Lane*> watched_lanes_;  // which have descriptors of their own
  std::vector<SuspectPath> suspect_paths_;
  std::vector<int> local_leavers_;
  std::vector<Failure> failures_;  // to be taken
  int num_suspects_ = 0;           // peers whose lane broke
  int num_unsettled_ = 0;          // these, and peers that are about to end
  Deadline next_check_{};
  Deadline next_tend_{};
  Deadline next_lane_tend_{};

  FailureState& state_;  // receives failures; decides whether calls continue
  const Descriptor repair_event_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<Failure> ended_;
  std::vector<BrokenPath> broken_;
  std::vector<BrokenPath> wanted_;
  std::vector<std::function<void()>> offers_;  // for the driver to call
  std::set<std::pair<int, std::string>> failed_devices_;
  std::vector<std::string> device_changes_;
  // Raised with offers_; pairs with the sleeper's last turn, as in Submissions::submit().
  std::atomic<int> num_offers_{0};
};

}  // namespace hccl
