// The connections of a communicator to all its peers: the set of descriptors that its driver sleeps
// on, what control links say, how a peer ends, and connections between nodes that break.
//
// A peer ends in steps, none of which blocks. A lane that breaks makes its peer a suspect: its control
// link may say why within explanation_time. A link that closes on this host leaves a process that may
// be ending. Links between nodes close one after the other. The driver checks all of these with their
// deadlines, beside those of the calls.
#pragma once

#include <sys/epoll.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/connection/control_link.h"
#include "engine/connection/peer_process.h"
#include "engine/connection/reconnection.h"
#include "engine/request.h"
#include "lanes/tcp.h"
#include "progress/sleep.h"

namespace hccl {

using StreamsByPath = std::vector<std::shared_ptr<Stream>>;

// The connections between this rank and one of another node.
struct TcpConnections {
  std::vector<StreamsByPath> lanes;  // [lane][path]
  StreamsByPath controls;            // [path]
  std::vector<std::string> names;    // of the paths, for people
};

class Connections final : private PathObserver {
 public:
  // Everything that matters rings; this bounds how late a signal, a deadline or a cut is seen.
  static constexpr int longest_sleep_ms = 100;

  // Data moves; calls are held until a diagnosis comes; calls have ended.
  enum class Traffic { flows, held, ended };

  Connections(int world_size, std::vector<int> local_ranks, double path_timeout_s);
  ~Connections() override { close(); }

  // ---- connecting; before the first request, from one thread
  void watch_bell(int fd) { watch(fd, bell_tag, EPOLLIN); }
  void add(int peer, StreamsByPath controls);
  void watch_lane(Lane& lane);
  // `lanes` are those of the connections' peer, which add() knows.
  void add_tcp_lanes(int peer, std::vector<TcpLane*> lanes);
  PathObserver& path_observer() { return *this; }

  // ---- driver
  // Waits for events. False if a signal cut it short.
  bool handle_events(int timeout_ms);
  // Checks what has a time of its own: suspects, ending processes, connections that are down.
  void tend(Deadline now, Traffic traffic);
  // When tend() is due at the latest, with no event before.
  Deadline next_check() const { return num_unsettled_ > 0 ? next_check_ : Deadline::max(); }
  // A lane to `peer` broke. Until it is known why, data does not move.
  void suspect(int peer, const std::string& error);
  bool holds_traffic() const { return num_suspects_ > 0; }
  // Whether it is still open how some peer ends.
  bool is_unsettled() const { return num_unsettled_ > 0; }
  // What this rank has observed, one at a time.
  std::optional<Failure> take_failure();
  // A call waits for a peer that has left.
  void fail_by_end(int peer, const std::string& error);
  // Ranks of this node that said goodbye. All they sent before is there to be read.
  const std::vector<int>& local_leavers() const { return local_leavers_; }
  void use_replacements(Traffic traffic);
  // The paths to these ranks that are down or unanswered.
  std::vector<PathTrouble> troubles_with(const std::vector<int>& ranks) const;
  void prepare_sleep(Sleep& sleep);
  // Whether a peer of another node lacks, or may lack, what was sent.
  bool owes() const;
  // Helps what was sent on its way. True once the kernels of peers of other nodes have all of it.
  bool deliver();
  void say_goodbye(uint64_t sequence, const std::string& error);
  void close();

  // ---- any thread
  Reconnection& reconnection() { return reconnection_; }
  // Throws std::invalid_argument where there is no connection to replace.
  void check_path(const BrokenPath& path) const;
  std::vector<EndedPeer> ended_peers() const;
  // Whether ended_peers() grew since the last call. For the driver.
  bool take_ended_peers() { return std::exchange(has_ended_peers_, false); }
  int epoll_fd() const { return epoll_.get(); }
  const std::vector<std::shared_ptr<PathStatistics>>& path_statistics() const { return records_; }

 private:
  // Tags in the epoll set: a rank for its control link, these two, or lane_tag and a number.
  static constexpr uint64_t bell_tag = ~uint64_t{0};
  static constexpr uint64_t process_tag = ~uint64_t{0} - 1;
  static constexpr uint64_t lane_tag = uint64_t{1} << 32;

  struct Peer {
    std::unique_ptr<ControlLink> link;
    std::vector<TcpLane*> lanes;  // none for this node's ranks
    Deadline cut_at{};            // since when no control connection stands, while that is so
    bool has_ended = false;       // and ended_peers() has it
    // A lane broke, and why is open until then.
    std::optional<Deadline> explained_until;
    std::string error;  // of that lane
    // The process is watched until it ends, or counts as alive.
    std::optional<Descriptor> process;
    Deadline lives_at{};
  };
  struct SuspectPath {  // broken, but perhaps only because the peer has left
    BrokenPath path;
    Deadline until;
  };

  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool is_local(int rank) const;
  void watch(int fd, uint64_t tag, uint32_t events);
  void watch_link(int rank, size_t path);
  bool path_lost(const TcpLane& lane, size_t path) override;
  void read(int rank);
  void follow(int rank);
  void follow_paths(int rank);
  void drop_paths(Peer& peer);
  void end_of_link(int rank);
  void note_end(int rank, Cause cause, const ProcessEnd& how = {});
  void settle(int rank, Deadline now);
  void settle_process(int rank, Deadline now);
  void count_unsettled();
  static bool is_closing(const Peer& peer, Deadline now);
  static bool has_closed_all(const Peer& peer);
  void check_cut(int rank, Deadline now);
  void report_suspects(Deadline now);
  void use(Replacement& replacement, Traffic traffic);

  const std::vector<int> local_ranks_;
  const double path_timeout_s_;
  const Descriptor epoll_;
  Reconnection reconnection_;
  // Complete before the first request.
  std::vector<std::shared_ptr<PathStatistics>> records_;
  std::vector<std::pair<size_t, size_t>> num_replaceable_;  // by rank: links and lanes, paths

  // The driver's.
  std::vector<Peer> peers_;  // by rank
  std::vector<TcpLane*> tcp_lanes_;
  std::vector<Lane*> watched_lanes_;  // which have descriptors of their own
  std::vector<SuspectPath> suspect_paths_;
  std::vector<int> local_leavers_;
  std::vector<Failure> failures_;  // to be taken
  bool has_ended_peers_ = false;
  int num_suspects_ = 0;   // peers whose lane broke
  int num_unsettled_ = 0;  // these, and peers that are about to end
  Deadline next_check_{};
  Deadline next_tend_{};

  mutable std::mutex ended_mutex_;
  std::vector<EndedPeer> ended_;  // guarded by ended_mutex_
};

}  // namespace hccl
