// The loops that hccl-perftest times: over a queue pair, and what they are compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/completion_queue.h"
#include "verbs/verbs.h"

namespace hccl {

// One end of a test. Both ends call the same function with the same numbers.
//
// Its buffer has two halves of `size` bytes: what it sends, and what it receives.
struct PerftestEnd {
  std::shared_ptr<QueuePairFace> pair;
  std::shared_ptr<CompletionQueue> queue;  // for sends and RECVs; the loop takes all that comes
  uint64_t address = 0;
  uint32_t lkey = 0;
  uint64_t remote_address = 0;  // of the peer's buffer
  uint32_t rkey = 0;
  size_t size = 0;
  CompletionQueue::Interrupt interrupt;
};

// All of them throw std::runtime_error when a request fails or nothing comes for a while.

// Messages go back and forth; microseconds of each way, as seen by the end that starts.
std::vector<double> send_ping_pong(PerftestEnd& end, size_t iterations, bool starts);
// The same with RDMA_WRITE: each end waits for the last byte in its memory to change.
std::vector<double> write_ping_pong(PerftestEnd& end, size_t iterations, bool starts);
// Microseconds of each RDMA_READ, one after the other. The other end need do nothing.
std::vector<double> read_one_by_one(PerftestEnd& end, size_t iterations);

// Seconds for so many requests, at most `window` under way, until the last one is acknowledged. A
// SEND needs sink() on the other end.
double stream(PerftestEnd& end, Opcode opcode, size_t iterations, size_t window);
void sink(PerftestEnd& end, size_t iterations, size_t window);

// Microseconds of each way over a plain socket, which both ends poll as queue pairs do.
std::vector<double> socket_ping_pong(int fd, uint64_t buffer, size_t size, size_t iterations,
                                     bool starts);
// Seconds for so many messages over a plain blocking socket, until one byte says that all came.
double socket_stream(int fd, uint64_t buffer, size_t size, size_t iterations, bool sends);
// Microseconds of each memcpy from one half of the buffer to the other.
std::vector<double> copy_times(uint64_t buffer, size_t size, size_t iterations);

// Nanoseconds that a cache line takes from one core to the other: half of each round trip between
// two threads pinned to them, for so many seconds. Throws std::system_error where a core is not
// ours.
std::vector<double> core_to_core_ns(int core, int other, double duration_s);
// Nanoseconds that a thread pinned to each core takes for the same additions, all at once: median
// of as many as so many seconds allow. A core that shares its arithmetic units with another thread
// takes up to twice as long. Throws as above.
std::vector<double> compute_ns(const std::vector<int>& cores, double duration_s);

}  // namespace hccl
