#include "verbs/rdma/codes.h"

#include "verbs/rdma/ibverbs.h"

namespace hccl {

namespace {

constexpr int longest_timeout_code = 31;
// Codes 1 to 31 in units of 10 us; code 0 is the longest, 655.36 ms.
constexpr int rnr_units[] = {1,    2,    3,    4,    6,     8,     12,    16,    24,   32,   48,
                             64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536, 2048,
                             3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
static_assert(std::size(rnr_units) == 31);

}  // namespace

int timeout_code(VerbsClock::duration timeout) {
  int code = 1;
  while (code < longest_timeout_code && std::chrono::nanoseconds(int64_t{4096} << code) < timeout) {
    ++code;
  }
  return code;
}

int rnr_timer_code(VerbsClock::duration timer) {
  for (size_t i = 0; i < std::size(rnr_units); ++i) {
    if (std::chrono::microseconds(10 * rnr_units[i]) >= timer) return static_cast<int>(i) + 1;
  }
  return 0;
}

int mtu_code(size_t num_bytes) {
  for (int code = 1; code <= 5; ++code) {
    if (num_bytes == size_t{128} << code) return code;
  }
  throw InvalidVerb("path_mtu must be 256, 512, 1024, 2048 or 4096, not " +
                    std::to_string(num_bytes));
}

Status status_of(int wc_status) {
  switch (wc_status) {
    case ibv::wc_success: return Status::success;
    case ibv::wc_loc_len_err: return Status::local_length_error;
    case ibv::wc_loc_prot_err: return Status::local_protection_error;
    case ibv::wc_wr_flush_err: return Status::flushed;
    case ibv::wc_rem_inv_req_err: return Status::remote_invalid_request_error;
    case ibv::wc_rem_access_err: return Status::remote_access_error;
    case ibv::wc_rem_op_err: return Status::remote_operation_error;
    case ibv::wc_retry_exc_err: return Status::retry_exceeded;
    case ibv::wc_rnr_retry_exc_err: return Status::rnr_retry_exceeded;
    case ibv::wc_loc_qp_op_err: return Status::local_operation_error;
    default: return Status::device_error;
  }
}

int wr_opcode(Opcode opcode) {
  switch (opcode) {
    case Opcode::send: return ibv::wr_send;
    case Opcode::send_with_imm: return ibv::wr_send_with_imm;
    case Opcode::rdma_write: return ibv::wr_rdma_write;
    case Opcode::rdma_write_with_imm: return ibv::wr_rdma_write_with_imm;
    case Opcode::rdma_read: return ibv::wr_rdma_read;
    case Opcode::recv:
    case Opcode::recv_rdma_with_imm: break;
  }
  throw InvalidVerb("not an opcode that can be sent");
}

}  // namespace hccl
