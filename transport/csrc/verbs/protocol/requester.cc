#include "verbs/protocol/requester.h"

#include <algorithm>
#include <cstring>

#include "verbs/checks.h"

namespace hccl {

Requester::Requester(PacketLane& packets, CompletionQueue& queue)
    : packets_(packets),
      queue_(queue),
      entries_(packets.attributes.max_send_wr),
      pieces_(packets.attributes.max_send_wr * packets.attributes.max_sge),
      inline_bytes_(packets.attributes.max_send_wr * packets.attributes.max_inline) {}

void Requester::post(const SendRequest& request) {
  const QueuePairAttributes& attributes = packets_.attributes;
  size_t size = checked_length(request, attributes);
  bool is_copied = request.flags & send_inline;
  if (tail_ - head_ == attributes.max_send_wr) {
    throw QueueFull("max_send_wr requests are under way");
  }
  size_t slot = tail_++ % entries_.size();
  ScatterGather* kept = &pieces_[slot * attributes.max_sge];
  size_t num_kept = request.pieces.size();
  if (is_copied) {
    std::byte* copy = inline_bytes_.data() + slot * attributes.max_inline;
    *kept = {reinterpret_cast<uint64_t>(copy), static_cast<uint32_t>(size), 0};
    num_kept = 1;
    for (const ScatterGather& piece : request.pieces) {
      std::memcpy(copy, reinterpret_cast<const void*>(piece.address), piece.length);
      copy += piece.length;
    }
  } else {
    std::copy(request.pieces.begin(), request.pieces.end(), kept);
  }
  entries_[slot] = {request, static_cast<uint32_t>(size)};
  entries_[slot].request.pieces = {kept, num_kept};
}

bool Requester::may_start(const PendingRequest& entry) {
  if (not_before_ != VerbsClock::time_point{}) {
    if (VerbsClock::now() < not_before_) return false;
    not_before_ = {};
  }
  if (num_reads_ == 0) return true;
  if (entry.request.flags & send_fence) return false;
  return entry.request.opcode != Opcode::rdma_read ||
         num_reads_ < packets_.attributes.max_rd_atomic;
}

bool Requester::transmit() {
  bool moved = false;
  while (next_ != tail_ && packets_.lane->flushed()) {
    PendingRequest& current = request_at(next_);
    if (current.problem != Status::success) break;
    if (!started_ && !may_start(current)) break;
    if (!waits()) has_received_ = true;  // it owed no answer until now
    if (current.request.opcode == Opcode::rdma_read) {
      send_read();
    } else {
      send_fragment();
    }
    moved = true;
  }
  return moved;
}

Packet Requester::first_packet(const PendingRequest& entry) const {
  const SendRequest& request = entry.request;
  Packet packet{.kind = static_cast<PacketKind>(static_cast<int>(request.opcode) + 1),
                .imm = request.imm,
                .size = entry.size,
                .number = static_cast<uint16_t>(next_)};
  if (request.opcode != Opcode::send && request.opcode != Opcode::send_with_imm) {
    packet.rkey = request.rkey;
    packet.remote_address = request.remote_address;
  }
  return packet;
}

void Requester::send_fragment() {
  PendingRequest& current = request_at(next_);
  ScatterGather part = locate(current.request.pieces, offset_);
  part.length = static_cast<uint32_t>(std::min<size_t>(part.length, packets_.mtu));
  bool is_copy = current.request.flags & send_inline;
  if (part.length > 0 && !is_copy && !packets_.domain.allows(part, 0)) {
    current.problem = Status::local_protection_error;
    return;
  }
  Packet packet = first_packet(current);
  if (started_) packet.kind = PacketKind::more;
  packet.length = part.length;
  packet.last = offset_ + part.length == current.size;
  packet.wants_ack = packet.last && next_ + 1 == tail_;
  packets_.send(packet, reinterpret_cast<const std::byte*>(part.address));
  current.last_on_lane = packets_.posted;
  offset_ += part.length;
  started_ = !packet.last;
  if (started_) return;
  offset_ = 0;
  ++next_;
}

void Requester::send_read() {
  PendingRequest& current = request_at(next_);
  for (const ScatterGather& piece : current.request.pieces) {
    if (!packets_.domain.allows(piece, access_local_write)) {
      current.problem = Status::local_protection_error;
      return;
    }
  }
  Packet packet = first_packet(current);
  packet.last = true;
  packets_.send(packet);
  current.last_on_lane = packets_.posted;
  current.received = 0;
  ++num_reads_;
  ++next_;
}

void Requester::acknowledge(uint16_t acked) {
  auto ended = static_cast<uint16_t>(acked - acked_);
  if (ended > next_ - acked_) {
    throw Fault{.send = Status::remote_operation_error, .text = "it acknowledged too much"};
  }
  for (; ended > 0; --ended, ++acked_) {
    const PendingRequest& done = request_at(acked_);
    if (done.request.opcode != Opcode::rdma_read) continue;
    --num_reads_;
    if (done.received != done.size && done.problem == Status::success) {
      throw Fault{.send = Status::remote_operation_error, .text = "a read's answer is too short"};
    }
  }
}

void Requester::not_ready(uint16_t number, std::chrono::microseconds timer) {
  uint64_t index = next_ - static_cast<uint16_t>(next_ - number);
  if (index < acked_ || index > next_) {
    throw Fault{.send = Status::remote_operation_error, .text = "it is not ready for no message"};
  }
  packets_.statistics.retries.add(1);
  if (index != rnr_index_) num_rnr_ = 0;
  rnr_index_ = index;
  ++num_rnr_;
  int limit = packets_.attributes.rnr_retry;
  if (limit != infinite_rnr_retry && num_rnr_ > limit) {
    throw Fault{.send = Status::rnr_retry_exceeded, .text = "the peer has no RECV posted"};
  }
  for (uint64_t i = index; i < next_; ++i) {
    if (request_at(i).request.opcode == Opcode::rdma_read) --num_reads_;
  }
  next_ = index;
  offset_ = 0;
  started_ = false;
  not_before_ = VerbsClock::now() + timer;
}

bool Requester::take_response(const Packet& packet) {
  uint64_t index = next_ - static_cast<uint16_t>(next_ - packet.number);
  PendingRequest& read = request_at(index);
  if (index < acked_ || index >= next_ || read.request.opcode != Opcode::rdma_read ||
      packet.length > read.size - read.received) {
    throw Fault{.send = Status::remote_operation_error, .text = "it answered no read of ours"};
  }
  if (read.problem == Status::success) {
    Delivery delivery =
        packets_.deliver(read.request.pieces, read.received, packet.length, access_local_write);
    if (delivery == Delivery::not_yet) return false;
    if (delivery == Delivery::forbidden) read.problem = Status::local_protection_error;
  }
  if (read.problem != Status::success && packets_.lane->lend() == nullptr) return false;
  read.received += packet.length;
  return true;
}

void Requester::complete() {
  while (head_ != tail_) {
    PendingRequest& oldest = request_at(head_);
    // Its failure is reported once all earlier requests have ended, acknowledged or not.
    if (oldest.problem != Status::success) throw Fault{.send = oldest.problem};
    if (head_ == acked_ || packets_.lane->completed() < oldest.last_on_lane) return;
    packets_.statistics.messages.add(1);
    packets_.statistics.bytes.add(oldest.size);
    if (oldest.request.flags & send_signaled) report(oldest, Status::success);
    ++head_;
  }
}

void Requester::check_silence(VerbsClock::time_point now) {
  if (has_received_ || !waits()) {
    has_received_ = false;
    last_received_ = now;
    num_timeouts_ = 0;
    return;
  }
  if (now - last_received_ < packets_.attributes.timeout) return;
  last_received_ = now;
  packets_.statistics.timeouts.add(1);
  if (++num_timeouts_ > packets_.attributes.retry_count) {
    throw Fault{.send = Status::retry_exceeded, .text = "the peer does not answer"};
  }
}

VerbsClock::time_point Requester::next_timer() const {
  if (next_ != tail_ && not_before_ != VerbsClock::time_point{}) return not_before_;
  if (waits()) return last_received_ + packets_.attributes.timeout;
  return VerbsClock::time_point::max();
}

void Requester::report(const PendingRequest& entry, Status status) {
  queue_.push({.wr_id = entry.request.wr_id,
               .status = status,
               .opcode = entry.request.opcode,
               .byte_len = status == Status::success ? entry.size : 0,
               .qp_num = packets_.qp_num});
}

void Requester::flush(Status status) {
  for (; head_ != tail_; ++head_) {
    const PendingRequest& oldest = request_at(head_);
    bool failed_here = oldest.problem != Status::success;
    if (head_ < acked_ && !failed_here) {
      if (oldest.request.flags & send_signaled) report(oldest, Status::success);
      continue;
    }
    report(oldest, status);
    status = Status::flushed;
  }
  clear();
}

void Requester::clear() {
  head_ = acked_ = next_ = tail_;
  offset_ = 0;
  started_ = false;
  num_reads_ = 0;
}

}  // namespace hccl
