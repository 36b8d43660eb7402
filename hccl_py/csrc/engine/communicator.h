// The engine of one communicator: made, connected rank by rank, then driven by a waiting thread.
//
//   Submissions      requests on their way here, and which thread drives
//   CollectiveQueue  collectives, one at a time     }
//   PointToPoint     sends and receives             }  touched by the driving thread only
//   Connections      peers: how they end, and paths }
//   FailureState     what ends all of this
//
// A driver never blocks outside sleep(): operations that take time are states with deadlines,
// checked along with the calls' deadlines, abort and close, and the caller's signals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/memory/arena.h"
#include "base/statistics.h"
#include "engine/calls/failure_state.h"
#include "engine/calls/recorder.h"
#include "engine/collective/collective_queue.h"
#include "engine/connection/connections.h"
#include "engine/driver/cores.h"
#include "engine/driver/submissions.h"
#include "engine/point_to_point.h"
#include "lanes/shared_memory/board.h"
#include "lanes/shared_memory/shm.h"
#include "progress/idle.h"
#include "progress/progress_thread.h"

namespace hccl {

// Called repeatedly by a waiting thread; throws to interrupt the wait (Ctrl-C).
using Interrupt = std::function<void()>;
inline constexpr auto signal_period = std::chrono::milliseconds(50);

struct CommunicatorOptions {
  int rank = 0;
  int world_size = 1;
  int num_channels = 2;          // for collectives; point-to-point has one more
  int num_slots = 8;             // of shared memory, per channel
  size_t slot_bytes = 131072;    // a multiple of 4096
  std::vector<int> local_ranks;  // ranks of this node in order, this one included
  std::shared_ptr<Arena> arena;  // of this process; nullptr: no registered memory
  bool checksum = false;         // of every frame between nodes; all ranks want the same
  double path_timeout_s = 2;     // how long bytes may be unacknowledged until a path counts as cut
};

class Communicator final : public Drivable {
 public:
  // Closes when its last owner drops it; the progress thread may drive it slightly longer.
  static std::shared_ptr<Communicator> create(const CommunicatorOptions& options,
                                              std::shared_ptr<ProgressThread> progress);

  // ---- connecting; before the first request, from one thread
  // `memory`: the peer's registered memory, whose payloads are read without a copy; nullptr: none.
  void add_shm_peer(int peer, std::shared_ptr<Segment> theirs, Descriptor their_doorbell,
                    Descriptor control, std::shared_ptr<ArenaWindow> memory);
  void add_tcp_peer(int peer, TcpConnections connections);
  // Any provider: one lane per channel, in order, and one for point-to-point.
  void add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes, StreamsByPath controls);
  // Memory that its lanes register; it is given the buffers of calls.
  void add_memory(const std::shared_ptr<RegisteredMemory>& memory) {
    collectives_.add_memory(memory);
    point_to_point_.add_memory(memory);
  }
  // All ranks of this host, of all nodes, and their total cores: with more ranks than cores a
  // waiting rank yields instead of spinning.
  void set_ranks_on_host(int ranks, int cores) {
    may_spin_ = ranks <= cores;
    moves_what_it_starts_ = may_spin_ && cores < 2 * ranks;
    collectives_.copy_table().set_crowded(ranks > cores);
    cores_.set_usable(cores);
  }
  // Any thread may set it at any time, for the next wait.
  void set_wait(Wait wait) { wait_.store(wait, std::memory_order_relaxed); }
  Wait way_to_wait() const { return wait_.load(std::memory_order_relaxed); }
  // How payloads are copied suits such cores, whatever is counted or measured. Before the first
  // call.
  void assume_cores(bool is_far, bool is_crowded) {
    distance_->assume(is_far);
    collectives_.copy_table().set_crowded(is_crowded);
  }
  // For measurements, see Channel.
  void set_checks(bool checks) {
    for (Channel& channel : collectives_.channels()) channel.set_checks(checks);
  }
  // Enables timing of the parts of its collectives. Before the first call.
  void start_profile() { collectives_.start_profile(); }

  // A request to fill: the last returned one, if there is one, with its plan. One thread at a
  // time.
  RequestPtr take_request();
  void give_back(RequestPtr request);

  // ---- calls; any thread
  // Runs a request to its end on this thread, or waits for the one that drives. Throws
  // CommunicatorFailed.
  void run(const RequestPtr& request, const Interrupt& interrupt);
  // The same for several, submitted in order and at once: throws the first one's failure when all
  // have ended.
  void run(std::span<const RequestPtr> requests, const Interrupt& interrupt);
  // Submits a small request and takes at most microseconds, so Python's lock may stay held. True:
  // it has ended. Otherwise finish() must follow. Throws CommunicatorFailed.
  bool run_briefly(const RequestPtr& request);
  void finish(const RequestPtr& request, const Interrupt& interrupt);
  // Submits a request; its buffers must live until it is done.
  void start(const RequestPtr& request) { start({&request, 1}); }
  void start(std::span<const RequestPtr> requests);
  // The same. But if a host has one core for each rank, the progress thread would take its rank's
  // core: a collective is then driven here while it mostly moves, for at most about 10 ms.
  void start_moving(const RequestPtr& request);
  // Waits until done or `deadline`; false if that passed first. Throws CommunicatorFailed.
  bool wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt);
  // Ends every request. The first cause stays.
  void abort(Cause cause, std::string reason = {});
  // Ends every request by the diagnosis that failures() has adopted.
  void apply_diagnosis();
  // Rejects new requests, and waits until all unawaited ones have ended; false if `deadline` passed
  // first.
  bool finish_unawaited(Deadline deadline, const Interrupt& interrupt);
  // `error`: why this rank leaves, for peers that still wait for it. Idempotent. `interrupt` may
  // throw while peers still receive; the exception is then thrown once all is closed. `goes_on`: in
  // a new communicator, which took this one's place.
  void close(
      const std::string& error = {}, const Interrupt& interrupt = [] {}, bool goes_on = false);

  // ---- windows
  // Of this rank's memory; it is open() after all peers were mapped. Any thread, one at a time.
  std::shared_ptr<Window> make_window(std::span<std::byte> memory) const {
    return std::make_shared<Window>(options_.arena, options_.rank, options_.world_size, memory);
  }
  // Where the peer has its memory and counters in its arena. False: this rank maps no such memory.
  bool map_window(Window& window, int peer, uint64_t num_bytes, uint64_t memory_at,
                  uint64_t signals_at) const;
  // `is_passive`: peers send messages to it.
  void open_window(const std::shared_ptr<Window>& window, uint64_t id, bool is_passive);
  void end_windows() { point_to_point_.windows()->end(); }

  // ---- peers, and connections between nodes that break and are replaced; any thread
  // Reads the control links if no call does.
  void poll();
  // The connections that broke since the last call. Call it about every second: it checks the
  // connections while no call does.
  std::vector<BrokenPath> take_broken();
  // No process listens any more at the address of this peer of another node.
  void note_refusal(int peer);
  // A lane to this peer cannot be made, although the peer is alive.
  void note_unreachable(int peer, const std::string& why);
  // The driver uses it from its next turn; no other thread may touch it any more. Also for the
  // first connection of a lane.
  void replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection);
  // Whether a peer of another node still lacks data of finished calls, so that broken connections
  // must be replaced. False while unawaited calls are running.
  bool has_undelivered();

  // ---- state; any thread
  const CommunicatorOptions& options() const { return options_; }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  int doorbell_fd() const { return doorbell_.get(); }
  FailureState& failures() { return failures_; }
  Connections& connections() { return connections_; }  // its part for any thread
  Statistics& statistics() { return statistics_; }
  const Stragglers& stragglers() const { return collectives_.stragglers(); }
  const Recorder& recorder() const { return recorder_; }
  uint64_t sequence() const { return submissions_.sequence(); }  // collectives submitted
  Caller caller() const;
  // Whether this thread is inside a call that it drives, as a signal handler may be.
  bool drives() const {
    return driver_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // The current progress, or the progress at the time of a failure.
  CallProgress progress_made();

  // ---- the progress thread
  Turn progress_turn() override;
  bool prepare_sleep(Sleep& sleep) override;

 private:
  // Requests of a thread that does not drive. ask_close has no effect without a running call.
  enum Ask : unsigned { ask_close = 1, ask_stop = 2, ask_progress = 4, ask_unawaited = 8 };

  // The right to drive, which one thread has at most and every driver holds here. The destructor
  // passes the remaining calls to a waiter or the progress thread, also after an exception:
  // otherwise no thread could drive again.
  class Driving {
   public:
    enum class As { caller, turn };  // of a thread in its call, or for a turn between calls

    // `has_right`: submissions_ has given it to this thread; otherwise this holds nothing.
    Driving(Communicator& driven, As as, bool has_right) : driven_(has_right ? &driven : nullptr) {
      if (as == As::caller && has_right) driven.note_driver(std::this_thread::get_id());
    }
    Driving(Driving&& other) noexcept : driven_(other.keep()) {}
    ~Driving() {
      if (driven_ != nullptr) keep()->hand_over();
    }
    explicit operator bool() const { return driven_ != nullptr; }
    // Returns the right. True if work is left for which no other thread was woken.
    bool stop() { return keep()->stop_driving(); }
    // This thread keeps the right beyond this object.
    Communicator* keep() { return std::exchange(driven_, nullptr); }

   private:
    Communicator* driven_;
  };

  // A thread that waits: the progress thread leaves the driving to it, and gets it back.
  struct Waiting {
    Communicator& owner;
    Request& request;
    Waiting(Communicator& its_owner, Request& awaited) : owner(its_owner), request(awaited) {
      owner.submissions_.begin_wait();
      ++request.num_waiters;
    }
    ~Waiting() {
      --request.num_waiters;
      if (owner.submissions_.end_wait()) owner.kick_progress_thread();
    }
  };

  Communicator(const CommunicatorOptions& options, std::shared_ptr<ProgressThread> progress);

  Driving try_turn() { return {*this, Driving::As::turn, submissions_.try_drive()}; }
  Driving turn_for_unawaited() {
    return {*this, Driving::As::turn, submissions_.try_drive_unawaited()};
  }
  Driving submit(std::span<const RequestPtr> requests, Driving::As as = Driving::As::caller);
  void note_driver(std::thread::id driver) { driver_.store(driver, std::memory_order_relaxed); }
  bool stop_driving();
  void hand_over();
  void drive(Driving driving, std::span<const RequestPtr> requests, Deadline deadline,
             const Interrupt& interrupt);
  void drive_while_moving(Driving driving, const Request& request);
  void drive_once();
  void await_all(std::span<const RequestPtr> requests, const Interrupt& interrupt);
  void finish_all(std::span<const RequestPtr> requests, Driving driving,
                  const Interrupt& interrupt);
  void deliver_rest(const Interrupt& interrupt);
  void kick_progress_thread();
  bool has_calls() const;
  bool has_work() const;
  bool has_unawaited() const;
  bool spins() const { return may_spin_ && way_to_wait() != Wait::idle; }
  bool asked(unsigned what) const { return asks_.load(std::memory_order_seq_cst) & what; }
  // Requests for which no other thread was woken, if this one drives.
  bool is_asked() const { return asked(~ask_close) || connections_.has_offers(); }
  void ask_to_stop(Failure failure, Ask how);
  void stop(Failure failure);

  // The driving thread's. `thoroughly`: before a sleep.
  bool progress(bool thoroughly);
  bool progress_or_fail(bool thoroughly = false);
  void accept();
  void accept(const RequestPtr& request);
  bool answer_asks();
  void check(Deadline now);
  void check_connections();
  void check_deadlines(Deadline now);
  void check_leavers();
  bool sleep(Deadline deadline);
  void announce_sleep(Sleep& sleep);
  Deadline next_deadline() const;
  void ask_signals(const Interrupt& interrupt);
  void notify_waiters();
  void fail(Failure failure);
  void take_failures();
  void stop_moving();
  bool is_written();
  void end_held();
  Failure timed_out() const;
  CallProgress measure() const;
  void keep_progress();
  void wake();

  const CommunicatorOptions options_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<ProgressThread> progress_thread_;
  std::weak_ptr<Communicator> self_;  // for the progress thread
  const Descriptor doorbell_;         // eventfd, rung by peers and by wake()
  bool may_spin_ = false;
  bool moves_what_it_starts_ = false;
  std::atomic<Wait> wait_{Wait::balanced};
  SpinRecord spins_;
  SpinRecord patience_;  // of start_moving()
  Statistics statistics_;
  Recorder recorder_;
  Submissions submissions_;
  FailureState failures_;
  Connections connections_;  // outlives the lanes, which report broken paths to it
  const std::shared_ptr<Distance> distance_ = std::make_shared<Distance>();
  Board board_;
  CollectiveQueue collectives_;
  PointToPoint point_to_point_;
  RequestPtr spare_;                               // of the last blocking call, for the next one
  std::vector<std::shared_ptr<Outbox>> outboxes_;  // by channel

  // Peers whose registered memory this rank maps, and their doorbells; constant once connected.
  struct NodePeer {
    std::shared_ptr<ArenaWindow> memory;
    std::shared_ptr<Doorbell> bell;
  };
  std::map<int, NodePeer> node_peers_;

  // The driving thread's.
  Cores cores_;
  std::vector<RequestPtr> accepted_;
  std::vector<RequestPtr> held_;  // requests that end with the failure
  // How long these wait for peers that write into their memory, and when the driver checks again.
  Deadline write_limit_ = Deadline::max(), next_look_ = Deadline::max();
  uint64_t num_finished_seen_ = 0;   // as of the last notify_waiters()
  unsigned num_turns_ = 0;           // of the progress thread
  bool close_afterwards_ = false;    // close() was called inside an interrupt of the driver
  std::exception_ptr interruption_;  // by a signal handler; for the caller that drives

  // Set by a thread that does not drive, before it wakes the driver. Pairs with the sleeper's last
  // turn, as in Submissions::submit().
  std::atomic<unsigned> asks_{0};
  // The driver's last answer. Pairs with nothing: finish_unawaited() polls.
  std::atomic<bool> has_unawaited_{false};
  // The thread that drives in its call; none: the progress thread, or no thread. Pairs with
  // nothing: a thread finds itself here only if it stored that; others may read old values.
  std::atomic<std::thread::id> driver_;
  std::mutex asks_mutex_;  // guards what follows
  FailurePtr stop_;        // the failure by which ask_stop and ask_close end the calls
  CallProgress progress_made_;
  uint64_t num_answers_ = 0;
  std::condition_variable answered_;
};

}  // namespace hccl
