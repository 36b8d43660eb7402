#include "verbs/checks.h"

namespace hccl {

void check_attributes(const QueuePairAttributes& attributes) {
  if (attributes.max_send_wr < 1 || attributes.max_send_wr > max_work_requests ||
      attributes.max_recv_wr < 1 || attributes.max_recv_wr > max_work_requests) {
    throw InvalidVerb("max_send_wr and max_recv_wr must be 1 to 16384");
  }
  if (attributes.max_sge < 1 || attributes.max_sge > max_scatter_gather) {
    throw InvalidVerb("max_sge must be 1 to 32");
  }
  if (attributes.max_rd_atomic < 1) throw InvalidVerb("max_rd_atomic must be at least 1");
  if (attributes.retry_count < 0 || attributes.rnr_retry < 0 ||
      attributes.rnr_retry > infinite_rnr_retry) {
    throw InvalidVerb("retry_count must be at least 0, rnr_retry 0 to 7");
  }
  if (attributes.timeout.count() <= 0 || attributes.min_rnr_timer.count() < 0) {
    throw InvalidVerb("timeout must be positive, min_rnr_timer not negative");
  }
}

void check_step(QueuePairState from, QueuePairState to) {
  using enum QueuePairState;
  bool forward = (from == reset && to == init) || (from == init && to == rtr) ||
                 (from == rtr && to == rts) || (from == to && from != error);
  if (!forward) throw InvalidVerb("no such step: RESET -> INIT -> RTR -> RTS, one at a time");
}

size_t checked_length(std::span<const ScatterGather> pieces, size_t max_pieces) {
  if (pieces.size() > max_pieces) throw InvalidVerb("more scatter/gather pieces than max_sge");
  size_t total = 0;
  for (const ScatterGather& piece : pieces) total += piece.length;
  if (total > max_message_bytes) throw InvalidVerb("a message has 2^31 bytes at most");
  return total;
}

size_t checked_length(const SendRequest& request, const QueuePairAttributes& attributes) {
  size_t size = checked_length(request.pieces, attributes.max_sge);
  bool is_copied = request.flags & send_inline;
  if (request.opcode < Opcode::send || request.opcode > Opcode::rdma_read) {
    throw InvalidVerb("not an opcode that can be sent: " +
                      std::to_string(static_cast<int>(request.opcode)));
  }
  if (is_copied && request.opcode == Opcode::rdma_read) {
    throw InvalidVerb("a read cannot be INLINE");
  }
  if (is_copied && size > attributes.max_inline) throw InvalidVerb("more bytes than max_inline");
  return size;
}

}  // namespace hccl
