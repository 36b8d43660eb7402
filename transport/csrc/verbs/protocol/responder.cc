#include "verbs/protocol/responder.h"

#include <algorithm>

namespace hccl {

namespace {

// How much may go unacknowledged while the peer keeps sending.
constexpr uint32_t messages_per_ack = 32;
constexpr size_t bytes_per_ack = 512 << 10;

bool consumes_recv(PacketKind kind) {
  return kind == PacketKind::send || kind == PacketKind::send_with_imm ||
         kind == PacketKind::write_with_imm;
}

bool is_send(PacketKind kind) {
  return kind == PacketKind::send || kind == PacketKind::send_with_imm;
}

}  // namespace

Responder::Responder(PacketLane& packets, CompletionQueue& queue)
    : packets_(packets),
      queue_(queue),
      recvs_(packets.attributes.max_recv_wr),
      pieces_(packets.attributes.max_recv_wr * packets.attributes.max_sge) {}

void Responder::post(const RecvRequest& request) {
  size_t max_sge = packets_.attributes.max_sge;
  size_t size = checked_length(request.pieces, max_sge);
  if (recv_tail_ - recv_head_ == recvs_.size()) throw QueueFull("max_recv_wr RECVs are posted");
  size_t slot = recv_tail_++ % recvs_.size();
  ScatterGather* kept = &pieces_[slot * max_sge];
  std::copy(request.pieces.begin(), request.pieces.end(), kept);
  recvs_[slot] = {{request.wr_id, {kept, request.pieces.size()}}, size};
}

bool Responder::take(const Packet& packet, size_t length) {
  if (!fragment_begun_) {
    try {
      fragment_dropped_ = !begin(packet, length);
    } catch (const Fault&) {
      // Reads that came before are answered before this request is rejected.
      if (!reads_.empty()) return false;
      throw;
    }
    fragment_begun_ = true;
  }
  if (fragment_dropped_) {
    if (length > 0 && packets_.lane->lend() == nullptr) return false;
  } else if (receiving_) {
    if (!deliver(length)) return false;
    offset_ += length;
    bytes_since_ack_ += length;
    if (packet.last) finish();
  }
  // An end that takes a RECV usually answers: the answer carries the acknowledgement.
  wants_ack_ |= packet.wants_ack && !consumes_recv(message_.kind);
  fragment_begun_ = false;
  return true;
}

// False: the fragment is to be dropped, because it will be sent again.
bool Responder::begin(const Packet& packet, size_t length) {
  if (packet.kind == PacketKind::more) {
    if (receiving_ && (length > message_.size - offset_ ||
                       packet.last != (offset_ + length == message_.size))) {
      reject(Status::remote_invalid_request_error, Status::flushed, "a malformed fragment");
    }
    return receiving_;
  }
  if (packet.number != static_cast<uint16_t>(executed_)) return false;
  if (receiving_ || packet.size > max_message_bytes ||
      (packet.kind == PacketKind::read
           ? length != 0
           : length > packet.size || packet.last != (length == packet.size))) {
    reject(Status::remote_invalid_request_error, Status::flushed, "a malformed message");
  }
  if (packet.kind == PacketKind::read) {
    begin_read(packet);
    return true;
  }
  return begin_message(packet);
}

bool Responder::begin_message(const Packet& packet) {
  if (!is_send(packet.kind) && packet.size > 0 &&
      !packets_.domain.allows(packet.rkey, packet.remote_address, packet.size,
                              access_remote_write)) {
    reject(Status::remote_access_error, Status::flushed, "a write outside of its region");
  }
  if (consumes_recv(packet.kind)) {
    if (recv_head_ == recv_tail_) {
      auto timer = std::chrono::duration_cast<std::chrono::microseconds>(
          packets_.attributes.min_rnr_timer);
      packets_.send({.kind = PacketKind::receiver_not_ready,
                     .number = packet.number,
                     .imm = static_cast<uint32_t>(timer.count())});
      return false;
    }
    if (is_send(packet.kind) && packet.size > oldest_recv().size) {
      reject(Status::remote_invalid_request_error, Status::local_length_error,
             "a message longer than its RECV");
    }
  }
  message_ = packet;
  offset_ = 0;
  receiving_ = true;
  return true;
}

void Responder::begin_read(const Packet& packet) {
  if (packet.size > 0 && !packets_.domain.allows(packet.rkey, packet.remote_address, packet.size,
                                                 access_remote_read)) {
    reject(Status::remote_access_error, Status::flushed, "a read outside of its region");
  }
  if (reads_.size() >= max_work_requests) {
    reject(Status::remote_invalid_request_error, Status::flushed, "too many reads");
  }
  message_ = packet;
  reads_.push_back({packet.remote_address, packet.rkey, packet.size, 0, executed_});
  ++executed_;
}

bool Responder::deliver(size_t length) {
  Delivery delivery;
  if (is_send(message_.kind)) {
    delivery = packets_.deliver(oldest_recv().request.pieces, offset_, length);
    if (delivery == Delivery::forbidden) {
      reject(Status::remote_operation_error, Status::local_protection_error, "a faulty RECV");
    }
    return delivery == Delivery::done;
  }
  if (length == 0) return true;
  uint64_t address = message_.remote_address + offset_;
  // Again for every fragment: the key may have been revoked meanwhile.
  if (!packets_.domain.allows(message_.rkey, address, length, access_remote_write)) {
    reject(Status::remote_access_error, Status::flushed, "a write into a revoked region");
  }
  return packets_.lane->receive(reinterpret_cast<std::byte*>(address));
}

void Responder::finish() {
  receiving_ = false;
  ++executed_;
  count_up();
  packets_.statistics.received_messages.add(1);
  packets_.statistics.received_bytes.add(message_.size);
  if (!consumes_recv(message_.kind)) return;
  bool has_imm = message_.kind != PacketKind::send;
  Completion completion{.wr_id = oldest_recv().request.wr_id,
                        .opcode = is_send(message_.kind) ? Opcode::recv : Opcode::recv_rdma_with_imm,
                        .has_imm = has_imm,
                        .imm = has_imm ? message_.imm : 0,
                        .byte_len = message_.size,
                        .qp_num = packets_.qp_num};
  ++recv_head_;
  queue_.push(completion);
}

// A read is carried out when its answer has left, and acknowledgements are in order.
void Responder::count_up() {
  packets_.to_acknowledge = reads_.empty() ? executed_ : reads_.front().index;
}

bool Responder::answer_reads() {
  bool moved = false;
  while (!reads_.empty() && packets_.lane->flushed()) {
    Read& read = reads_.front();
    Packet packet{.kind = PacketKind::read_response, .number = static_cast<uint16_t>(read.index)};
    uint64_t address = read.address + read.sent;
    auto* source = reinterpret_cast<const std::byte*>(address);
    size_t length = std::min<size_t>(read.size - read.sent, packets_.mtu);
    if (length > 0 && !packets_.domain.allows(read.rkey, address, length, access_remote_read)) {
      throw Fault{.rejection = Status::remote_access_error,
                  .number = packet.number,
                  .text = "a read from a revoked region"};
    }
    read.sent += static_cast<uint32_t>(length);
    packet.last = read.sent == read.size;
    if (packet.last) {
      reads_.pop_front();
      count_up();
    }
    packets_.send(packet, source, length);
    last_answer_ = packets_.posted;
    moved = true;
  }
  return moved;
}

bool Responder::acknowledge(bool idle) {
  bool owes = packets_.acknowledged != packets_.to_acknowledge;
  bool much = packets_.to_acknowledge - packets_.acknowledged >= messages_per_ack ||
              bytes_since_ack_ >= bytes_per_ack;
  wants_ack_ &= owes || !reads_.empty();
  if (!probed_ && !(owes && (wants_ack_ || idle)) && !much) return false;
  if (!packets_.lane->flushed()) return false;
  wants_ack_ = probed_ = false;
  bytes_since_ack_ = 0;
  packets_.send({.kind = PacketKind::acknowledge});
  return true;
}

void Responder::reject(Status rejection, Status recv, const char* text) {
  throw Fault{.recv = recv,
              .rejection = rejection,
              .number = static_cast<uint16_t>(executed_),
              .text = text};
}

void Responder::flush(Status status) {
  for (; recv_head_ != recv_tail_; ++recv_head_) {
    queue_.push({.wr_id = oldest_recv().request.wr_id,
                 .status = status,
                 .opcode = Opcode::recv,
                 .qp_num = packets_.qp_num});
    status = Status::flushed;
  }
  clear();
}

void Responder::clear() {
  recv_head_ = recv_tail_;
  reads_.clear();
  receiving_ = fragment_begun_ = false;
}

void Responder::reset() {
  clear();
  executed_ = 0;
  last_answer_ = 0;
  wants_ack_ = probed_ = false;
  bytes_since_ack_ = 0;
}

}  // namespace hccl
