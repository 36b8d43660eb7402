// The receiving half of a queue pair: executes the peer's requests, in order and once.
#pragma once

#include <deque>
#include <vector>

#include "verbs/completion_queue.h"
#include "verbs/protocol/packet_lane.h"

namespace hccl {

// Guarded by the lock of its queue pair.
class Responder {
 public:
  Responder(PacketLane& packets, CompletionQueue& queue);

  // Takes a RECV; throws InvalidVerb or QueueFull.
  void post(const RecvRequest& request);

  // Accepts the peeked fragment of a request. False: it is incomplete, or must wait. Throws Fault.
  bool take(const Packet& packet);
  // Sends as many answers to reads as the lane accepts. True if anything moved. Throws Fault.
  bool answer_reads();
  // Acknowledges executed requests, if the peer waits for that and no other packet did so. `idle`:
  // nothing was received for a while.
  bool acknowledge(bool idle);
  // RECVs that were reported.
  uint64_t num_received() const { return recv_head_; }
  // Number on the lane of the last fragment of an answer.
  uint64_t last_answer() const { return last_answer_; }

  // Ends every RECV: the oldest with `status`, the rest with FLUSHED.
  void flush(Status status);
  // Drops all RECVs without completions.
  void clear();

 private:
  struct Recv {
    RecvRequest request;  // its pieces lie in `pieces_`
    size_t size = 0;
  };

  const Recv& oldest_recv() const { return recvs_[recv_head_ % recvs_.size()]; }
  bool begin(const Packet& packet);
  bool deliver(size_t length);
  void finish();
  void count_up();
  [[noreturn]] void reject(Status rejection, Status recv, const char* text);

  PacketLane& packets_;
  CompletionQueue& queue_;

  std::vector<Recv> recvs_;
  std::vector<ScatterGather> pieces_;  // max_sge for each RECV
  uint64_t recv_head_ = 0, recv_tail_ = 0;

  uint16_t executed_ = 0;        // requests carried out; reads count as soon as they are understood
  bool fragment_begun_ = false;  // the peeked fragment was checked, but is incomplete
  bool fragment_dropped_ = false;
  bool receiving_ = false;    // in the middle of a message:
  Packet message_;            // its first packet
  size_t offset_ = 0;         // its received bytes
  std::deque<Packet> reads_;  // that the peer waits for
  uint32_t answered_ = 0;     // bytes of the oldest of them
  uint64_t last_answer_ = 0;

  bool wants_ack_ = false;  // the peer has nothing more to send
  size_t bytes_since_ack_ = 0;
};

}  // namespace hccl
