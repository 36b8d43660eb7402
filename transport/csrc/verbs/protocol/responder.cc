#include "verbs/protocol/responder.h"

#include <algorithm>

#include "verbs/checks.h"

namespace hccl {

namespace {

// How much may go unacknowledged while the peer keeps sending.
constexpr uint32_t messages_per_ack = 32;
constexpr size_t bytes_per_ack = 512 << 10;

bool is_send(PacketKind kind) {
  return kind == PacketKind::send || kind == PacketKind::send_with_imm;
}

bool consumes_recv(PacketKind kind) { return is_send(kind) || kind == PacketKind::write_with_imm; }

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

bool Responder::take(const Packet& packet) {
  if (!fragment_begun_) {
    try {
      fragment_dropped_ = !begin(packet);
    } catch (const Fault&) {
      // Earlier reads are answered before this request is rejected.
      if (!reads_.empty()) return false;
      throw;
    }
    fragment_begun_ = true;
  }
  if (fragment_dropped_) {
    if (packet.length > 0 && packets_.lane->lend() == nullptr) return false;
  } else if (receiving_) {
    if (!deliver(packet.length)) return false;
    offset_ += packet.length;
    bytes_since_ack_ += packet.length;
    if (packet.last) finish();
  }
  // An end that consumes a RECV usually answers, and the answer carries the acknowledgement.
  wants_ack_ |= packet.wants_ack && !consumes_recv(message_.kind);
  fragment_begun_ = false;
  return true;
}

// False: drop the fragment, which will be sent again.
bool Responder::begin(const Packet& packet) {
  bool is_first = packet.kind != PacketKind::more;
  bool is_read = packet.kind == PacketKind::read;
  if (is_first ? packet.number != executed_ : !receiving_) return false;
  size_t left = is_first ? packet.size : message_.size - offset_;
  bool fits = is_read ? packet.length == 0
                      : packet.length <= left && packet.last == (packet.length == left);
  if (!fits || (is_first && (receiving_ || packet.size > max_message_bytes)) ||
      reads_.size() >= max_work_requests) {
    reject(Status::remote_invalid_request_error, Status::flushed, "a malformed message");
  }
  if (!is_first) return true;
  if (!is_send(packet.kind) && packet.size > 0 &&
      !packets_.domain.allows({packet.remote_address, packet.size, packet.rkey},
                              is_read ? access_remote_read : access_remote_write)) {
    reject(Status::remote_access_error, Status::flushed,
           is_read ? "a read outside of its region" : "a write outside of its region");
  }
  if (consumes_recv(packet.kind) && recv_head_ == recv_tail_) {
    auto timer =
        std::chrono::duration_cast<std::chrono::microseconds>(packets_.attributes.min_rnr_timer);
    packets_.send({.kind = PacketKind::receiver_not_ready,
                   .imm = static_cast<uint32_t>(timer.count()),
                   .number = packet.number});
    return false;
  }
  if (is_send(packet.kind) && packet.size > oldest_recv().size) {
    reject(Status::remote_invalid_request_error, Status::local_length_error,
           "a message longer than its RECV");
  }
  message_ = packet;
  offset_ = 0;
  receiving_ = !is_read;
  if (is_read) {
    reads_.push_back(packet);
    ++executed_;
  }
  return true;
}

bool Responder::deliver(size_t length) {
  bool sent = is_send(message_.kind);
  ScatterGather written{message_.remote_address, message_.size, message_.rkey};
  auto pieces = sent ? oldest_recv().request.pieces : std::span<const ScatterGather>(&written, 1);
  // Checked again for every fragment: the key may have been revoked meanwhile.
  Delivery delivery =
      packets_.deliver(pieces, offset_, length, sent ? access_local_write : access_remote_write);
  if (delivery != Delivery::forbidden) return delivery == Delivery::done;
  if (!sent) reject(Status::remote_access_error, Status::flushed, "a write into a revoked region");
  reject(Status::remote_operation_error, Status::local_protection_error, "a faulty RECV");
}

void Responder::finish() {
  receiving_ = false;
  ++executed_;
  count_up();
  packets_.statistics.received_messages.add(1);
  packets_.statistics.received_bytes.add(message_.size);
  if (!consumes_recv(message_.kind)) return;
  bool has_imm = message_.kind != PacketKind::send;
  Completion completion{
      .wr_id = oldest_recv().request.wr_id,
      .opcode = is_send(message_.kind) ? Opcode::recv : Opcode::recv_rdma_with_imm,
      .has_imm = has_imm,
      .imm = has_imm ? message_.imm : 0,
      .byte_len = message_.size,
      .qp_num = packets_.qp_num};
  ++recv_head_;
  queue_.push(completion);
}

// A read is executed when its answer has left, and acknowledgements are in order.
void Responder::count_up() {
  packets_.to_acknowledge = reads_.empty() ? executed_ : reads_.front().number;
}

bool Responder::answer_reads() {
  bool moved = false;
  while (!reads_.empty() && packets_.lane->flushed()) {
    const Packet& read = reads_.front();
    ScatterGather part{read.remote_address + answered_, read.size - answered_, read.rkey};
    part.length = static_cast<uint32_t>(std::min<size_t>(part.length, packets_.mtu));
    if (part.length > 0 && !packets_.domain.allows(part, access_remote_read)) {
      reject(Status::remote_access_error, Status::flushed, "a read from a revoked region");
    }
    answered_ += part.length;
    Packet packet{.kind = PacketKind::read_response, .length = part.length, .number = read.number};
    packet.last = answered_ == read.size;
    if (packet.last) {
      answered_ = 0;
      reads_.pop_front();
      count_up();
    }
    packets_.send(packet, reinterpret_cast<const std::byte*>(part.address));
    last_answer_ = packets_.posted;
    moved = true;
  }
  return moved;
}

bool Responder::acknowledge(bool idle) {
  auto owed = static_cast<uint16_t>(packets_.to_acknowledge - packets_.acknowledged);
  bool much = owed >= messages_per_ack || bytes_since_ack_ >= bytes_per_ack;
  wants_ack_ &= owed > 0 || !reads_.empty();
  if (!much && !(owed > 0 && (wants_ack_ || idle))) return false;
  if (!packets_.lane->flushed()) return false;
  wants_ack_ = false;
  bytes_since_ack_ = 0;
  packets_.send({.kind = PacketKind::acknowledge});
  return true;
}

void Responder::reject(Status rejection, Status recv, const char* text) {
  throw Fault{.recv = recv, .rejection = rejection, .text = text};
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
  answered_ = 0;
  receiving_ = fragment_begun_ = false;
}

}  // namespace hccl
