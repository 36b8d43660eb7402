// Moves the requests of one communicator: whichever thread waits, drives.
//
//   Submissions      requests on their way here, and which thread drives
//   CollectiveQueue  collectives, one at a time     }
//   PointToPoint     sends and receives             }  touched by the driving thread only
//   Connections      peers: how they end, and paths }
//   FailureState     what ends all of this
//
// A driver never blocks outside sleep(): what takes time is a state with a deadline, checked in turn
// with those of the calls, with abort and close, and with the caller's signals.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/statistics.h"
#include "engine/collective_queue.h"
#include "engine/connection/connections.h"
#include "engine/driver/submissions.h"
#include "engine/failure/call_progress.h"
#include "engine/failure/failure_state.h"
#include "engine/point_to_point.h"
#include "engine/recorder.h"
#include "lanes/segment.h"
#include "progress/drivable.h"
#include "progress/idle.h"

namespace hccl {

class ProgressThread;

// Called now and then by a waiting thread; throws to interrupt the wait (Ctrl-C).
using Interrupt = std::function<void()>;

struct DriverOptions {
  int rank = 0;
  int world_size = 1;
  int num_channels = 2;
  size_t slot_bytes = 0;
  std::vector<int> local_ranks;
  double path_timeout_s = 2;
};

class Driver final : public Drivable, public std::enable_shared_from_this<Driver> {
 public:
  Driver(const DriverOptions& options, std::shared_ptr<Segment> segment,
         std::shared_ptr<ProgressThread> progress);
  ~Driver() override { close({}); }

  // ---- before the first request
  CollectiveQueue& collectives() { return collectives_; }
  const CollectiveQueue& collectives() const { return collectives_; }
  PointToPoint& point_to_point() { return *point_to_point_; }
  Connections& connections() { return connections_; }
  void add_local_segment(std::shared_ptr<Segment> theirs) { local_segments_.push_back(theirs); }
  const std::vector<std::shared_ptr<Segment>>& local_segments() const { return local_segments_; }
  void set_may_spin(bool may_spin);
  int doorbell_fd() const { return doorbell_.get(); }

  // ---- any thread
  FailureState& failures() { return failures_; }
  const FailureState& failures() const { return failures_; }
  Statistics& statistics() { return statistics_; }
  const Statistics& statistics() const { return statistics_; }
  const Recorder& recorder() const { return recorder_; }
  uint64_t sequence() const { return submissions_.sequence(); }
  Caller caller() const;

  // Runs a request to its end on this thread, or waits for the one that drives. Throws
  // CommunicatorFailed.
  void run(const RequestPtr& request, const Interrupt& interrupt);
  // Hands a request over; the buffers must live until it is done.
  void start(const RequestPtr& request);
  // Waits until done or `deadline`; false if that passed first. Throws CommunicatorFailed.
  bool wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt);
  // Ends every request. The first cause stays.
  void abort(Failure failure);
  void apply_diagnosis();
  void close(const std::string& error);
  // Reads the control links if no call does.
  void poll();
  bool has_undelivered();
  // Of now, or of the moment at which a failure stopped it.
  CallProgress progress_made();
  std::vector<BrokenPath> take_broken();
  void replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection);

  // ---- the progress thread
  Turn progress_turn() override;
  bool prepare_sleep(Sleep& sleep) override;

 private:
  // Requests of a thread that does not drive. ask_close does nothing where no call is under way.
  enum Ask : unsigned { ask_close = 1, ask_stop = 2, ask_progress = 4 };

  bool submit(const RequestPtr& request);
  void drive(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt);
  void drive_once();
  void hand_over();
  bool has_calls() const;
  bool has_work() const;
  bool has_requests() const;
  bool asked(unsigned what) const { return asks_.load(std::memory_order_seq_cst) & what; }
  void ask_to_stop(Failure failure, Ask how);

  // The driving thread's. `thoroughly`: before a sleep.
  bool progress(bool thoroughly);
  bool progress_or_fail(bool thoroughly = false);
  void accept();
  bool answer_asks();
  void check(Deadline now);
  void check_deadlines(Deadline now);
  void check_leavers();
  bool sleep(Deadline deadline);
  void announce_sleep(Sleep& sleep);
  Deadline next_deadline() const;
  bool shares_core();
  void ask_signals(const Interrupt& interrupt);
  void rethrow_interruption();
  void notify_waiters();
  void fail(Failure failure);
  void take_failures();
  void stop_moving();
  void release_if_ended();
  Failure timed_out() const;
  Connections::Traffic traffic() const;
  CallProgress measure() const;
  void keep_progress();
  void wake();

  const int rank_;
  const double path_timeout_s_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<ProgressThread> progress_thread_;
  const Descriptor doorbell_;  // eventfd, rung by peers and by wake()
  bool may_spin_ = false;
  SpinRecord spins_;
  Statistics statistics_;
  Recorder recorder_;
  Submissions submissions_;
  FailureState failures_;
  Connections connections_;  // outlives the lanes, which report broken paths to it
  CollectiveQueue collectives_;
  std::unique_ptr<PointToPoint> point_to_point_;
  std::vector<std::shared_ptr<Segment>> local_segments_;  // of the node's other ranks

  // The driving thread's.
  std::vector<RequestPtr> accepted_;
  uint64_t num_finished_seen_ = 0;  // as of the last notify_waiters()
  unsigned num_turns_ = 0;          // of the progress thread
  bool close_afterwards_ = false;   // close() was called inside an interrupt of the driver
  std::exception_ptr interruption_;  // raised inside a lane; for the caller that drives

  // Set by a thread that does not drive, before it wakes the driver. Pairs with the sleeper's last
  // turn, as in Submissions::submit().
  std::atomic<unsigned> asks_{0};
  std::atomic<std::thread::id> driver_;  // inside drive(); compared with the caller's own id only
  std::mutex asks_mutex_;                // guards what follows
  FailurePtr stop_;                      // what ask_stop and ask_close end the calls with
  CallProgress progress_made_;
  uint64_t num_answers_ = 0;
  std::condition_variable answered_;
};

}  // namespace hccl
