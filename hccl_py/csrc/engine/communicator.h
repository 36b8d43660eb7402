// The engine of one communicator: its lanes, its queue of requests, and who drives them.
//
// Whoever waits drives. At most one thread at a time (the driver) touches channels, lanes, links and
// the list of accepted requests; `driving_` under `mutex_` is the baton. A thread that calls a
// blocking function takes it and moves bytes itself; what nobody waits for is driven by the progress
// thread, which hands the baton over as soon as somebody wants it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "base/statistics.h"
#include "engine/call_progress.h"
#include "engine/collective.h"
#include "engine/control_link.h"
#include "engine/in_place.h"
#include "engine/lateness.h"
#include "engine/peer_process.h"
#include "engine/point_to_point.h"
#include "engine/recorder.h"
#include "engine/request.h"
#include "lanes/shm.h"
#include "lanes/tcp.h"
#include "progress/drivable.h"
#include "progress/idle.h"

namespace hccl {

class ProgressThread;

// Tags of descriptors in the epoll set: those that only wake, a rank for its control link, or the
// second and a number for a lane between nodes.
inline constexpr uint64_t wake_tag = ~uint64_t{0};
inline constexpr uint64_t lane_tag = uint64_t{1} << 32;

struct CommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  int num_channels = 2;      // for collectives; point-to-point has one more
  SegmentShape segment;      // num_channels there counts all of them
  std::vector<int> local_ranks;  // ranks of this node in order, this one included
  std::shared_ptr<Arena> arena;  // of this process; nullptr: no registered memory
  bool checksum = false;         // of every frame between nodes; all ranks want the same
  double path_timeout_s = 2;     // how long a connection may swallow bytes until it counts as cut
};

using Connections = std::vector<std::shared_ptr<Stream>>;

// The connections between this rank and one of another node.
struct TcpConnections {
  std::vector<Connections> lanes;  // [lane][path]
  Connections controls;            // [path]
  std::vector<std::string> names;  // of the paths, for people
};

// A connection that broke and may be replaced.
struct Broken {
  int peer = 0;
  int index = 0;  // 0: control, 1 + lane
  int path = 0;
};

class Communicator : public std::enable_shared_from_this<Communicator>,
                     public Drivable,
                     private PathObserver {
 public:
  // Called now and then by a waiting thread; throws to interrupt the wait (Ctrl-C).
  using Interrupt = std::function<void()>;

  Communicator(const CommunicatorOptions& options, std::shared_ptr<ProgressThread> progress);
  ~Communicator() override;

  int world_size() const { return options_.world_size; }
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }
  std::shared_ptr<Segment> segment() const { return segment_; }
  const std::shared_ptr<Arena>& arena() const { return options_.arena; }

  // Connecting; before the first request, from one thread.
  void add_shm_peer(int peer, std::shared_ptr<Segment> theirs, Descriptor their_doorbell,
                    Descriptor control);
  // The registered memory of a peer on this node; without it nothing is done in place.
  void set_peer_arena(int peer, std::shared_ptr<ArenaWindow> theirs);
  // All ranks of this host, other nodes' and communicators' too where known: more than there are
  // cores, and a waiting rank yields its core instead of spinning.
  void set_ranks_on_host(int ranks) { may_spin_ = ranks <= usable_cores(); }
  void add_tcp_peer(int peer, TcpConnections connections);
  // Any provider: one lane per channel, in order, and one for point-to-point.
  void add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes, Connections controls);

  // For measurements, see Channel. Before the first request.
  void set_checks(bool checks) {
    for (Channel& channel : channels_) channel.set_checks(checks);
  }

  // Runs a request to its end on this thread, or on whoever drives. Throws CommunicatorFailed.
  void run(const RequestPtr& request, const Interrupt& interrupt);
  // Hands a request over; the buffers must live until it is done.
  void start(const RequestPtr& request);
  // Waits until done or `deadline`; false if that passed first. Throws CommunicatorFailed.
  bool wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt);

  // Ends every request of this rank. The first cause stays. `cause`: aborted or uncaught_exception.
  void abort(const std::string& reason, Cause cause = Cause::aborted);
  // `error`: because of which this rank leaves, for peers that still wait for it.
  void close(const std::string& error = {});

  // Failures, where a coordinator makes one diagnosis of what all ranks observed. Any thread may call
  // these; see communicator_failure.cc.
  //
  // From now on a failure of this rank waits so long for a diagnosis; 0: it decides alone. Before the
  // first request.
  void set_diagnosis_timeout(double seconds) { diagnosis_timeout_s_ = seconds; }
  // Readable when there is something new in take_report(), ended_peers() or failure().
  int report_fd() const { return news_.get(); }
  // What this rank observed and the coordinator should know; once.
  FailurePtr take_report();
  // Takes over the coordinator's diagnosis, unless there is a failure. No call ends by it yet, and none
  // fails in another way: so a diagnosis can reach several communicators or ranks before any caller is
  // released. apply_diagnosis() has to follow.
  void adopt_diagnosis(Cause cause, std::string diagnosis);
  // Ends every request by it.
  void apply_diagnosis();
  std::vector<EndedPeer> ended_peers() const;
  // Reads the control links if nobody else does, because no call is under way.
  void poll();
  // Whether a peer of another node still lacks something that finished calls have sent: for as long
  // connections that broke have to be brought back. Not if calls are under way, which nobody awaits.
  bool has_undelivered();
  // Of now, or of the moment at which a failure stopped it.
  CallProgress progress_made();

  // Connections between nodes that break and are replaced. Any thread may call these.
  //
  // Readable when take_broken() has something to tell.
  int repair_fd() const { return repair_.get(); }
  // What broke since the last call. To be called now and then anyway: it looks after the connections
  // while nobody waits for a call.
  std::vector<Broken> take_broken();
  // The driver takes it into use at its next turn; nobody else may touch it any more.
  void replace_connection(const Broken& place, std::shared_ptr<Stream> connection);
  const std::vector<std::shared_ptr<PathStatistics>>& path_statistics() const { return records_; }

  // Who calls: to tell a rank that cannot go on from one that has other threads to do so.
  struct Caller {
    std::thread::id thread;  // that submitted last; none: nobody has
    bool several = false;    // threads have submitted so far
    bool blocked = false;    // one waits in here now
  };
  Caller caller() const;

  FailurePtr failure() const;  // nullptr: none
  uint64_t sequence() const;  // collectives submitted
  const Statistics& statistics() const { return statistics_; }
  Statistics& statistics() { return statistics_; }  // for lanes that are made elsewhere
  const Lateness& lateness() const { return lateness_; }
  const Recorder& recorder() const { return recorder_; }
  size_t slot_bytes() const { return options_.segment.slot_bytes; }

  // For the progress thread. Both return at once.
  Turn progress_turn() override;
  bool prepare_sleep(Sleep& sleep) override;

 private:
  bool enqueue(const RequestPtr& request);
  bool try_take_baton();
  bool take_baton_nobody_waits_for();
  void drop_baton();
  void pass_baton();
  bool calls_left() const;
  bool work_left() const;
  bool work_came_in() const;
  bool asked(unsigned what) const { return asks_.load(std::memory_order_seq_cst) & what; }
  void stop_waiting();
  void ask_to_close();
  bool starved() const;
  void announce_sleep(Sleep& sleep);
  int longest_sleep_ms() const;  // without the baton
  bool shares_core();
  void drive(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt);
  // `thoroughly`: before a sleep.
  bool progress(bool thoroughly);
  bool obey();
  void drive_once();
  bool progress_or_fail(bool thoroughly = false);
  void rethrow_interruption();
  void notify_waiters();
  bool advance_collective();
  void accept_requests();
  void begin_collective();
  void begin_plan();
  bool advance_in_place();
  void end_collective(bool in_place);
  void record_end(CallState state, bool in_place);
  void record_failure();
  void check_deadlines();
  void check_neglected();
  bool sleep(Deadline deadline);
  bool handle_events(int timeout_ms);
  void ask(const Interrupt& interrupt);
  void fail_interrupted();
  void receive_control(ControlLink& link);
  void check_leavers();
  void await_explanation(int peer);
  bool waits_for(int peer);
  void fail(Failure failure);
  void stop_moving();
  void end_all(FailurePtr failure);
  void note_ended(const ControlLink& link);
  static void note_process(pid_t process, EndedPeer& ended);
  void notify();
  void answer_progress();
  void note_progress(CallProgress progress);
  CallProgress measure_progress() const;
  void wake();
  void watch(int fd, uint64_t tag);
  Failure timed_out() const;
  void fail_by_peer(int peer, const std::string& error);

  // communicator_paths.cc
  struct TcpPeer {
    std::vector<TcpLane*> lanes;
    Deadline cut_at{};  // since when no control connection stands, while that is so
  };
  struct Adoption {
    Broken place;
    std::shared_ptr<Stream> connection;
  };
  // Broken, but perhaps only because the peer has left.
  struct Suspect {
    Broken place;
    Deadline until;
  };
  bool path_lost(const TcpLane& lane, size_t path) override;
  void report_broken(const Broken& place);
  void report_suspects(Deadline now);
  void check_place(const Broken& place) const;
  void adopt_connections();
  void adopt(Adoption& adoption);
  void tend_connections(Deadline now);
  void tend_link(ControlLink& link, Deadline now);
  void follow_link(ControlLink& link);
  void drop_paths(ControlLink& link);
  bool has_died(int peer);
  static bool has_closed_all(const TcpPeer& peer);
  void note_announcing();
  void deliver_rest();
  std::vector<PathTrouble> troubles_with(const std::vector<int>& ranks) const;

  const CommunicatorOptions options_;
  const std::shared_ptr<ProgressThread> progress_thread_;
  bool may_spin_ = false;
  SpinRecord spins_;
  std::shared_ptr<Segment> segment_;
  const Descriptor doorbell_;
  const Descriptor epoll_;
  const Descriptor repair_;
  const Descriptor news_;
  double diagnosis_timeout_s_ = 0;
  Statistics statistics_;
  std::vector<std::shared_ptr<PathStatistics>> records_;  // complete before the first request

  // Touched by the driver only; `recorder_` and the counters of `lateness_` are read by anyone.
  Recorder recorder_;
  Lateness lateness_;
  uint64_t last_end_ns_ = 0;  // of the collective before this one
  std::vector<Channel> channels_;
  std::unique_ptr<InPlace> in_place_;  // nullptr unless all ranks share this node
  std::unique_ptr<PointToPoint> point_to_point_;
  std::vector<std::shared_ptr<Outbox>> outboxes_;
  std::vector<std::unique_ptr<ControlLink>> links_;  // by rank
  std::vector<TcpPeer> tcp_peers_;                   // by rank; no lanes for this node's
  std::vector<TcpLane*> tcp_lanes_;
  std::vector<Lane*> announced_lanes_;  // which have descriptors of their own
  Deadline next_tend_{};
  std::vector<Suspect> suspects_;
  std::vector<std::shared_ptr<Segment>> local_segments_;  // of the node's other ranks
  std::deque<RequestPtr> collectives_;
  std::vector<RequestPtr> doomed_;  // moved no more, and not ended yet
  std::optional<Deadline> diagnosis_deadline_;  // while a failure is reported and not diagnosed
  RequestPtr active_;
  uint64_t num_finished_seen_ = 0;  // as of the last notify_waiters()
  unsigned num_turns_ = 0;          // of the progress thread
  bool close_afterwards_ = false;   // close() was called inside an interrupt of the driver
  std::exception_ptr interruption_;  // raised inside a lane; for the caller that drives

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable baton_passed_;
  bool driving_ = false;
  bool declined_ = false;  // the progress thread left the baton to a waiter
  std::vector<RequestPtr> incoming_;
  std::vector<RequestPtr> accepted_;  // the driver's, swapped with incoming_
  uint64_t sequence_ = 0;
  std::thread::id submitter_;
  bool several_submitters_ = false;
  std::vector<Broken> broken_;
  std::vector<Adoption> adoptions_;
  FailurePtr failure_;
  FailurePtr report_;  // written by the driver only
  bool report_taken_ = false;
  FailurePtr diagnosis_;  // adopted
  FailurePtr asked_;      // an abort or the diagnosis, for the driver
  std::vector<EndedPeer> ended_;
  CallProgress progress_made_;
  uint64_t num_answers_ = 0;
  std::condition_variable answered_;
  bool closed_ = false;

  // Read without the mutex as hints: a stale value costs one more turn.
  std::atomic<bool> announces_{true};  // epoll tells of all that connections do
  std::atomic<int> num_incoming_{0};
  std::atomic<int> num_adoptions_{0};
  std::atomic<int> num_waiters_{0};
  // What somebody without the baton asks of the driver, written under the mutex. As for num_incoming_:
  // either a sleeper sees it, or we see the sleeper. ask_close spares a communicator with no work.
  enum Ask : unsigned { ask_close = 1, ask_abort = 2, ask_diagnosis = 4, ask_progress = 8 };
  std::atomic<unsigned> asks_{0};
  std::atomic<std::thread::id> driver_;  // inside drive()
};

}  // namespace hccl
