// The engine of one communicator, as Python holds it: made, connected rank by rank, then driven.
//
// It makes lanes and hands them to the parts that use them; how calls run stands in driver/driver.h.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "engine/driver/driver.h"
#include "lanes/shm.h"

namespace hccl {

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

class Communicator {
 public:
  Communicator(const CommunicatorOptions& options, std::shared_ptr<ProgressThread> progress);
  ~Communicator() { close(); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // ---- connecting; before the first request, from one thread
  int world_size() const { return options_.world_size; }
  size_t slot_bytes() const { return options_.segment.slot_bytes; }
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return driver_->doorbell_fd(); }
  std::shared_ptr<Segment> segment() const { return segment_; }
  const std::shared_ptr<Arena>& arena() const { return options_.arena; }
  void add_shm_peer(int peer, std::shared_ptr<Segment> theirs, Descriptor their_doorbell,
                    Descriptor control);
  // The registered memory of a peer on this node: its payloads there are read without a copy.
  void set_peer_arena(int peer, std::shared_ptr<ArenaWindow> theirs);
  void add_tcp_peer(int peer, TcpConnections connections);
  // Any provider: one lane per channel, in order, and one for point-to-point.
  void add_peer(int peer, std::vector<std::unique_ptr<Lane>> lanes, StreamsByPath controls);
  // All ranks of this host, other nodes' and communicators' too where known: more than there are
  // cores, and a waiting rank yields its core instead of spinning.
  void set_ranks_on_host(int ranks) { driver_->set_may_spin(ranks <= usable_cores()); }
  // For measurements, see Channel.
  void set_checks(bool checks);
  // From now on a failure of this rank waits so long for a diagnosis; 0: it decides alone.
  void set_diagnosis_timeout(double seconds) {
    driver_->failures().set_diagnosis_timeout(seconds);
  }

  // ---- calls; any thread. See Driver.
  void run(const RequestPtr& request, const Interrupt& interrupt) {
    driver_->run(request, interrupt);
  }
  void start(const RequestPtr& request) { driver_->start(request); }
  bool wait(const RequestPtr& request, Deadline deadline, const Interrupt& interrupt) {
    return driver_->wait(request, deadline, interrupt);
  }
  // `cause`: aborted or uncaught_exception.
  void abort(const std::string& reason, Cause cause = Cause::aborted);
  // `error`: because of which this rank leaves, for peers that still wait for it. Idempotent.
  void close(const std::string& error = {}) { driver_->close(error); }

  // ---- failures; any thread. A coordinator makes one diagnosis of what all ranks report.
  //
  // Readable when there is something new in take_report(), ended_peers() or failure().
  int report_fd() const { return driver_->failures().event_fd(); }
  // What this rank observed and the coordinator should know; once.
  FailurePtr take_report() { return driver_->failures().take_report(); }
  // Takes over the coordinator's diagnosis, unless there is a failure. No call ends by it yet, and none
  // fails in another way: so a diagnosis can reach several communicators or ranks before any caller is
  // released. apply_diagnosis() has to follow.
  void adopt_diagnosis(Cause cause, std::string diagnosis) {
    driver_->failures().adopt(cause, std::move(diagnosis));
  }
  // Ends every request by it.
  void apply_diagnosis() { driver_->apply_diagnosis(); }
  FailurePtr failure() const { return driver_->failures().failure(); }  // nullptr: none
  std::vector<EndedPeer> ended_peers() const { return driver_->connections().ended_peers(); }
  // Reads the control links if no call does.
  void poll() { driver_->poll(); }
  // Of now, or of the moment at which a failure stopped it.
  CallProgress progress_made() { return driver_->progress_made(); }

  // ---- connections between nodes that break and are replaced; any thread
  //
  // Readable when take_broken() has something new.
  int repair_fd() const { return driver_->connections().reconnection().event_fd(); }
  // The connections that broke since the last call. Call it every second or so in any case: it
  // checks the connections while no call does.
  std::vector<BrokenPath> take_broken() { return driver_->take_broken(); }
  // The driver takes it into use at its next turn; no other thread may touch it any more.
  void replace_connection(const BrokenPath& path, std::shared_ptr<Stream> connection) {
    driver_->replace_connection(path, std::move(connection));
  }
  // Whether a peer of another node still lacks something that finished calls have sent: for as long
  // connections that broke have to be brought back. Not if calls are under way that no thread awaits.
  bool has_undelivered() { return driver_->has_undelivered(); }

  // ---- what is known of it; any thread
  Caller caller() const { return driver_->caller(); }
  uint64_t sequence() const { return driver_->sequence(); }  // collectives submitted
  const Statistics& statistics() const { return driver_->statistics(); }
  Statistics& statistics() { return driver_->statistics(); }  // for lanes that are made elsewhere
  const Lateness& lateness() const { return driver_->collectives().lateness(); }
  const Recorder& recorder() const { return driver_->recorder(); }
  const std::vector<std::shared_ptr<PathStatistics>>& path_statistics() const {
    return driver_->connections().path_statistics();
  }

 private:
  int local_rank(int rank) const;

  const CommunicatorOptions options_;
  const std::shared_ptr<Segment> segment_;
  // Shared with the progress thread, which may drive it a moment longer than this lives.
  const std::shared_ptr<Driver> driver_;
  std::vector<std::shared_ptr<Outbox>> outboxes_;  // by channel
};

}  // namespace hccl
