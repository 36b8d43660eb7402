// The vocabulary of verbs: requests that are posted to a queue pair, and their completions.
//
// The names are those of libibverbs, written out; docs/internals/transport.md has the table. A
// reliable connection is ordered and exactly once; an error moves the queue pair to ERROR, which
// ends everything posted before and after with FLUSHED.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "progress/sleep.h"

namespace hccl {

// The numbers are used in Python (transport/providers/verbs/types.py): append only.
enum class Opcode : int {
  send = 0,
  send_with_imm = 1,
  rdma_write = 2,
  rdma_write_with_imm = 3,
  rdma_read = 4,
  recv = 5,                // completions only
  recv_rdma_with_imm = 6,  // completions only
};

enum class Status : uint8_t {
  success = 0,
  local_length_error = 1,            // IBV_WC_LOC_LEN_ERR: a message longer than its RECV
  local_protection_error = 2,        // IBV_WC_LOC_PROT_ERR: wrong lkey, range or access
  flushed = 3,                       // IBV_WC_WR_FLUSH_ERR
  remote_invalid_request_error = 4,  // IBV_WC_REM_INV_REQ_ERR: the peer could not accept it
  remote_access_error = 5,           // IBV_WC_REM_ACCESS_ERR: wrong rkey, range or access
  remote_operation_error = 6,        // IBV_WC_REM_OP_ERR: the peer's own RECV was faulty
  retry_exceeded = 7,                // IBV_WC_RETRY_EXC_ERR: the peer is silent or has ended
  rnr_retry_exceeded = 8,            // IBV_WC_RNR_RETRY_EXC_ERR: it never posted a RECV
  local_operation_error = 9,         // IBV_WC_LOC_QP_OP_ERR: the device could not execute it
  device_error = 10,                 // any other status of a device, or the device is gone
};

enum class QueuePairState : uint8_t { reset = 0, init = 1, rtr = 2, rts = 3, error = 4 };

// Flags of a memory region. Local reading is always allowed.
inline constexpr uint32_t access_local_write = 1;   // IBV_ACCESS_LOCAL_WRITE
inline constexpr uint32_t access_remote_write = 2;  // IBV_ACCESS_REMOTE_WRITE
inline constexpr uint32_t access_remote_read = 4;   // IBV_ACCESS_REMOTE_READ

// Flags of a send request.
inline constexpr uint32_t send_fence = 1;  // starts after all earlier reads have ended
inline constexpr uint32_t send_signaled =
    2;                                      // completes on the completion queue also if it succeeds
inline constexpr uint32_t send_inline = 8;  // the payload is copied while posting

inline constexpr size_t max_message_bytes = size_t{1} << 31;
inline constexpr size_t max_work_requests = 16384;
inline constexpr size_t max_scatter_gather = 32;
inline constexpr int infinite_rnr_retry = 7;

// A registered range. `lkey` names it in requests of this side, `rkey` in those of the peer.
struct MemoryRegion {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  uint32_t access = 0;
};

// A piece of registered memory.
struct ScatterGather {
  uint64_t address = 0;
  uint32_t length = 0;
  uint32_t lkey = 0;
};

struct SendRequest {
  uint64_t wr_id = 0;
  Opcode opcode = Opcode::send;
  uint32_t flags = send_signaled;
  uint32_t imm = 0;
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
  std::span<const ScatterGather> pieces = {};
};

struct RecvRequest {
  uint64_t wr_id = 0;
  std::span<const ScatterGather> pieces = {};
};

struct Completion {
  uint64_t wr_id = 0;
  Status status = Status::success;
  Opcode opcode = Opcode::send;
  bool has_imm = false;
  uint32_t imm = 0;
  uint32_t byte_len = 0;
  uint32_t qp_num = 0;
};

using VerbsClock = std::chrono::steady_clock;

struct QueuePairAttributes {
  size_t max_send_wr = 128;
  size_t max_recv_wr = 128;
  size_t max_sge = 4;
  size_t max_inline = 64;
  size_t path_mtu = 0;  // 0: as much as the lane takes in one message
  size_t max_rd_atomic = 16;
  int retry_count = 7;
  int rnr_retry = infinite_rnr_retry;
  VerbsClock::duration timeout = std::chrono::milliseconds(500);
  VerbsClock::duration min_rnr_timer = std::chrono::microseconds(100);
};

// The call was wrong and had no effect.
class InvalidVerb : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A queue has no room; ENOMEM in libibverbs.
class QueueFull : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The calls that a lane makes on a connected queue pair. QueuePair implements them over any lane,
// RdmaQueuePair on an RDMA device.
class QueuePairInterface {
 public:
  virtual ~QueuePairInterface() = default;

  // Registers memory for the peer's requests and ours, until the queue pair is destroyed.
  virtual MemoryRegion register_memory(std::span<std::byte> memory, uint32_t access) = 0;
  // Its protection domain: queue pairs of one can use the memory that any of them registered.
  virtual const void* domain() const = 0;
  // Never block. Throw QueueFull; in ERROR they succeed, and the request ends with FLUSHED.
  virtual void post_send(const SendRequest& request) = 0;
  virtual void post_recv(const RecvRequest& request) = 0;
  // Takes available completions of sends and RECVs, the RECVs in order; never blocks.
  virtual size_t poll(std::span<Completion> out) = 0;
  // Why it is in ERROR, for messages.
  virtual std::string reason() = 0;
  // Why nothing reaches the peer at present, for messages; empty: nothing is known.
  virtual std::string trouble() { return {}; }
  // Bytes of an INLINE request.
  virtual size_t max_inline() const = 0;
  // Moves it to ERROR: no request touches memory any more, neither the peer's nor ours. Never
  // blocks.
  virtual void stop() = 0;
  // Ends it: from then on nothing touches memory that was registered or posted. Idempotent.
  virtual void close() = 0;

  // Descriptors that a sleeper has to watch.
  virtual std::vector<int> descriptors() = 0;
  // Before a sleep, and before the last poll: later completions make a descriptor readable, as
  // after ibv_req_notify_cq. True: something arrived meanwhile, so do not sleep.
  virtual bool prepare_sleep(Sleep& sleep) = 0;
};

}  // namespace hccl
