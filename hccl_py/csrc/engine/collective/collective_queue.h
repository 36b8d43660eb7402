// The collectives of one communicator, in the order submitted: one runs, the others wait.
//
// Touched by the driver only, but for the counters of stragglers().
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/calls/recorder.h"
#include "engine/calls/request.h"
#include "engine/calls/stragglers.h"
#include "engine/collective/collective.h"
#include "engine/collective/copy_table.h"
#include "lanes/shared_memory/distance.h"
#include "verbs/registered_memory.h"

namespace hccl {

class CollectiveQueue {
 public:
  // `distance`: of the cores of peers. `recorder` and `statistics` outlive this.
  CollectiveQueue(int rank, int world_size, int num_channels, size_t slot_bytes,
                  std::shared_ptr<Distance> distance, Recorder& recorder, Statistics& statistics);

  // Before the first request.
  std::deque<Channel>& channels() { return channels_; }
  // All ranks are on one node: all lanes are of shared memory. Before the first request.
  void set_one_node() { is_one_node_ = true; }
  CopyTable& copy_table() { return copy_table_; }
  // Registers the buffers of each call. Before the first request.
  void add_memory(std::shared_ptr<RegisteredMemory> memory) {
    memories_.push_back(std::move(memory));
  }
  // Times the parts of all calls, not only of compressed ones.
  void start_profile() { is_profiled_ = true; }

  void push(const RequestPtr& request) { waiting_.push_back(request); }
  bool idle() const { return !active_ && waiting_.empty(); }
  const Request* active() const { return active_.get(); }
  // Makes progress. True if anything moved. `may_spin`: a turn is short. Throws LaneError,
  // Mismatch.
  bool advance(bool may_spin);
  // Whether a message waits for room, or until peers have read it.
  bool unflushed() const;
  // Throws Mismatch if a rank has sent a message of another call than the running one, which may
  // explain the wait.
  void look_for_strays();
  void sleeps() { stragglers_.sleeps(); }

  // Whether a call is late; waiting calls count only while one runs.
  bool is_late(Deadline now) const;
  // Time of the next check, without events.
  Deadline next_turn() const;
  bool waits_for(int peer) const;
  bool has_unawaited() const;
  // Writes the rank's progress, as far as this queue knows it.
  void measure(CallProgress& progress) const;
  // Drops all calls and appends them to `unfinished`; for a failed communicator, whose channels
  // never move again.
  void abandon(std::vector<RequestPtr>& unfinished);

  // Frees the lanes.
  void close();

  const Stragglers& stragglers() const { return stragglers_; }

 private:
  void begin();
  void end();
  void record_end(CallState state);
  void expect(const Call& call);

  const size_t slot_bytes_;
  Recorder& recorder_;
  Statistics& statistics_;
  bool is_one_node_ = false;
  bool is_profiled_ = false;
  Stragglers stragglers_;
  CopyTable copy_table_;
  const std::shared_ptr<Distance> distance_;
  std::deque<Channel> channels_;
  std::vector<std::shared_ptr<RegisteredMemory>> memories_;
  std::deque<RequestPtr> waiting_;
  RequestPtr active_;
  uint64_t last_end_ns_ = 0;           // of the collective before this one
  uint64_t num_announced_before_ = 0;  // the active collective
};

}  // namespace hccl
