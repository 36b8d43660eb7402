// The end of a queue pair: errors, goodbyes, and memory that must be returned first.
#include "verbs/software/queue_pair.h"

namespace hccl {

namespace {

// How long a queue pair that has failed or closes waits for its last packet to leave.
constexpr auto parting_time = std::chrono::milliseconds(500);
constexpr int longest_sleep_ms = 1;  // the end of an announcement wakes no sleeper

}  // namespace

// To ERROR. The requests end when the lane has given their memory back.
void QueuePair::fail(const Fault& fault) {
  QueuePairState before = state();
  if (before == QueuePairState::error) return;
  state_.store(QueuePairState::error, std::memory_order_release);
  fault_ = fault;
  ending_ = true;
  ending_until_ = VerbsClock::now() + parting_time;
  if (underlying_ && before >= QueuePairState::rtr) notify_peer(fault.rejection);
  drain();
}

void QueuePair::notify_peer(Status rejection) {
  try {
    packets_.send({.kind = PacketKind::goodbye, .imm = static_cast<uint32_t>(rejection)});
  } catch (const LaneError&) {
    peer_left_ = true;
  }
}

// A turn in ERROR: the last packet leaves, and the peer's packets are discarded.
bool QueuePair::drain() {
  bool moved = false;
  if (underlying_) {
    try {
      Lane& lane = *packets_.lane;
      moved = lane.flush();
      for (int i = 0; i < packets_per_turn; ++i) {
        const Header* header = lane.peek();
        if (header == nullptr) break;
        peer_left_ |= std::bit_cast<Packet>(*header).kind == PacketKind::goodbye;
        if (header->length > 0 && lane.lend() == nullptr) break;
        lane.release();
        moved = true;
      }
      if (peer_left_ && (lane.settled() || underlying_->peer_has_ended())) drop_lane();
    } catch (const LaneError&) {
      peer_left_ = true;
      drop_lane();
    }
  }
  if (!ending_) return moved;
  if (underlying_ && packets_.lane->completed() < packets_.posted) {
    if (VerbsClock::now() < ending_until_) return moved;
    drop_lane();
  }
  ending_ = false;
  requester_->flush(fault_.send);
  responder_->flush(fault_.recv);
  return true;
}

// Drops the lane, which ends all borrowing.
void QueuePair::drop_lane() {
  packets_.lane = nullptr;
  underlying_.reset();
}

void QueuePair::close() {
  std::exception_ptr interruption;
  try {
    {
      auto held = lock();
      if (closed_) return;
      closed_ = true;
      requester_->clear();
      responder_->clear();
      if (underlying_ && state() >= QueuePairState::rtr) fail(Fault{.text = "it was closed"});
    }
    wait_until([this] { return !underlying_ || state() < QueuePairState::rtr; });
  } catch (const LaneInterrupted&) {
    interruption = std::current_exception();
  }
  recv_queue_->detach(this);
  send_queue_->detach(this);
  domain_->detach(this);
  {
    auto held = lock();
    drop_lane();
    state_.store(QueuePairState::reset, std::memory_order_release);
  }
  if (interruption) std::rethrow_exception(interruption);
}

// Drives until `done`, called with the lock held, returns true. False: a moment was not enough.
template <class Done>
bool QueuePair::wait_until(Done done) {
  auto until = VerbsClock::now() + parting_time;
  for (;;) {
    Sleep sleep(Sleeper::caller);
    sleep.limit(until);
    bool moved = announce_sleep(sleep);
    {
      auto held = lock();
      if (done()) return true;
      if (VerbsClock::now() >= until) return false;
    }
    if (!moved) sleep.wait(longest_sleep_ms);
  }
}

// The next fragment of such a read is rejected. Fragments on the lane must leave, or be read by the
// peer if they were announced.
void QueuePair::release_region() {
  if (wait_until([this] {
        return !underlying_ || packets_.lane->completed() >= responder_->last_answer();
      })) {
    return;
  }
  auto held = lock();
  peer_left_ = true;
  fail(Fault{.send = Status::retry_exceeded,
             .text = "the peer does not take the answer to its read"});
  drop_lane();
  drain();
}

}  // namespace hccl
