// send and recv with tags, on a channel of their own.
//
// A message up to eager_bytes_ travels with its envelope. A longer one announces itself
// (request_to_send), waits until its receive is posted (clear_to_send) and then streams in
// fragments straight into the receive's buffer. So any number of transfers in any order make
// progress, and a message without a posted receive occupies at most eager_bytes_ each.
//
// The same lanes carry what ranks write into windows that they do not map: a put streams straight
// into the window's memory, and its signals follow. A rank with such a window receives without a
// call.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/calls/recorder.h"
#include "engine/calls/request.h"
#include "engine/window.h"
#include "lanes/lane.h"
#include "verbs/registered_memory.h"

namespace hccl {

class PointToPoint {
 public:
  static constexpr size_t longest_eager_bytes = 16384;
  // Of a transfer whose payload the kernel copies (copy_table.h has the modes). From one rank to
  // another, 64 KiB took 9 us and 15 singly, 1 MiB 76 and 113, 4 MiB 300 and 330, 16 MiB 2.1 ms.
  static constexpr size_t least_single_bytes = 8 << 20;

  // `recorder` and `statistics` are the communicator's and outlive this.
  PointToPoint(int rank, int world_size, size_t slot_bytes, Recorder& recorder,
               Statistics& statistics);

  std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }
  // Registers the buffers of long transfers. Before the first request.
  void add_memory(std::shared_ptr<RegisteredMemory> memory) {
    memories_.push_back(std::move(memory));
  }

  void post(const RequestPtr& request);
  // Makes progress. True if anything moved. Throws LaneError.
  bool progress();
  bool unflushed() const { return !backlog_.empty(); }
  bool idle() const { return num_pending_ == 0 && backlog_.empty(); }
  // Whether messages come for which no call waits.
  bool serves() const { return windows_->are_passive(); }
  const std::shared_ptr<Windows>& windows() const { return windows_; }
  uint64_t num_finished() const { return num_finished_; }
  // Ends requests whose deadline has passed, if no data of them has moved. Returns a late one that
  // is partly moved, for which the communicator must fail; or nullptr.
  RequestPtr expire(Deadline now);
  // Drops every request, and appends unfinished ones to `unfinished`; for a failed communicator.
  void abandon(std::vector<RequestPtr>& unfinished);
  // Frees the lanes.
  void close();
  size_t num_pending() const { return static_cast<size_t>(num_pending_); }
  // Whether some request waits for `peer`.
  bool waits_for(int peer) const;
  bool has_unawaited() const;

 private:
  enum Kind : uint16_t {
    eager = 1,
    request_to_send = 2,
    clear_to_send = 3,
    fragment = 4,
    put = 5,  // `fingerprint`: the window, `size`: the offset
    signal = 6,
  };

  struct Sending {
    RequestPtr request;
    uint64_t receiver_id = 0;  // known once it is clear to send
    size_t posted = 0;         // bytes passed to the lane
    uint64_t last_number = 0;  // 0: nothing posted
    bool is_posted() const { return last_number > 0 && posted == request->num_bytes; }
  };
  struct Receiving {
    RequestPtr request;
    size_t received = 0;
  };
  struct Unexpected {
    int peer;
    Header header;
    std::vector<std::byte> payload;  // eager only
    RequestPtr self;                 // a send to this rank itself
  };

  Lane& lane(int peer) { return *lanes_[static_cast<size_t>(peer)]; }
  void post_send(const RequestPtr& request);
  uint64_t post(int peer, const Header& header, const std::byte* payload = nullptr);
  bool drain(int peer);
  bool drain_fragment(int peer, const Header& header);
  bool drain_put(int peer, const Header& header);
  bool drain_all();
  void handle(int peer, const Header& header);
  Header part_of(const Sending& sending, size_t num_bytes) const;
  bool follows(const Sending& sending) const;
  bool stream(Sending& sending);
  bool take_signals();
  void arrive(Unexpected message);
  void accept(const RequestPtr& receive, Unexpected& message);
  void expect(const Request& request);
  void finish(const RequestPtr& request);
  void reject(const RequestPtr& request, size_t theirs);
  template <typename Visit>
  void for_each_request(Visit visit) const;

  const int rank_;
  const size_t eager_bytes_;
  Recorder& recorder_;
  Statistics& statistics_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::shared_ptr<RegisteredMemory>> memories_;
  std::vector<bool> closed_;  // lanes whose peer left while no request needed it
  Backlog backlog_;
  std::list<RequestPtr> posted_receives_;
  std::list<Unexpected> unexpected_;
  std::unordered_map<uint64_t, Sending> announced_;  // wait for clear_to_send, by our id
  std::list<Sending> sending_;  // including eager ones whose payload the lane still borrows
  std::unordered_map<uint64_t, Receiving> receiving_;  // by our id
  std::list<RequestPtr> awaited_signals_;
  std::vector<std::byte> dropped_;  // a put into a window that is closed
  const std::shared_ptr<Windows> windows_ = std::make_shared<Windows>();
  uint64_t next_id_ = 1;
  int num_pending_ = 0;
  uint64_t num_finished_ = 0;
};

}  // namespace hccl
