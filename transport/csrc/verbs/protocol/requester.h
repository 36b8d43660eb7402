// The sending half of a queue pair: requests until the peer has executed them.
//
//   head_ ... acked_ ... next_ ... tail_
//   done, the lane may still borrow | sent, not acknowledged | waits to be sent
#pragma once

#include <vector>

#include "verbs/completion_queue.h"
#include "verbs/protocol/packet_lane.h"

namespace hccl {

// Guarded by the lock of its queue pair.
class Requester {
 public:
  Requester(PacketLane& packets, CompletionQueue& queue);

  // Whether the peer owes an answer.
  bool waits() const { return acked_ != next_ || started_; }
  size_t num_waiting() const { return tail_ - next_; }
  // Takes a request; throws InvalidVerb or QueueFull.
  void post(const SendRequest& request);

  // Sends as much as the lane accepts. True if anything moved.
  bool transmit();
  // The peer has executed `acked` requests, modulo 2^16. Throws Fault.
  void acknowledge(uint16_t acked);
  // The peer has no RECV for message `number`. Throws Fault.
  void not_ready(uint16_t number, std::chrono::microseconds timer);
  // Accepts the peeked fragment of a read's answer. False: it is incomplete. Throws Fault.
  bool take_response(const Packet& packet);
  // Reports completed requests. Throws Fault for a request that failed on this side.
  void complete();
  // Throws Fault if the peer owes an answer for too long.
  void check_silence(VerbsClock::time_point now);
  void received() { has_received_ = true; }
  VerbsClock::time_point next_timer() const;
  // Ends everything: the oldest unacknowledged request with `status`, later ones with FLUSHED.
  void flush(Status status);
  // Drops all requests without completions.
  void clear();

 private:
  struct PendingRequest {
    SendRequest request;  // its pieces lie in `pieces_`
    uint32_t size = 0;
    uint32_t received = 0;             // of a read's answer
    uint64_t last_on_lane = 0;         // number of its last fragment
    Status problem = Status::success;  // found on this side
  };

  PendingRequest& request_at(uint64_t index) { return entries_[index % entries_.size()]; }
  bool may_start(const PendingRequest& entry);
  void send_fragment();
  void send_read();
  Packet first_packet(const PendingRequest& entry) const;
  void report(const PendingRequest& entry, Status status);

  PacketLane& packets_;
  CompletionQueue& queue_;
  std::vector<PendingRequest> entries_;
  std::vector<ScatterGather> pieces_;    // max_sge for each entry
  std::vector<std::byte> inline_bytes_;  // max_inline for each entry
  uint64_t head_ = 0, acked_ = 0, next_ = 0, tail_ = 0;
  size_t offset_ = 0;     // bytes of entry next_ that were sent
  bool started_ = false;  // entry next_ is under way
  size_t num_reads_ = 0;  // reads that were sent and have no answer yet

  VerbsClock::time_point not_before_{};  // the peer asked for this pause
  uint64_t rnr_index_ = ~uint64_t{0};
  int num_rnr_ = 0;

  bool has_received_ = true;
  VerbsClock::time_point last_received_{};
  int num_timeouts_ = 0;
};

}  // namespace hccl
