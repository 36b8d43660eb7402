// The forms of a Python call on its way to the engine. All functions are called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <span>

#include "bindings/bindings.h"

namespace hccl {

// A submitted request; keeps the Python objects whose memory it uses alive until it is done.
struct Work {
  nanobind::object communicator;
  RequestPtr request;
  nanobind::object buffers;

  bool wait(double timeout_s);
};

// The parts of a collective that its ranks agree on, and this rank's plan.
struct Prepared {
  std::shared_ptr<Plan> plan;
  DType dtype;
  ReduceOp op;
  size_t count;
  uint64_t fingerprint;
  bool divide;
  Compression compression;
  // Other numbers of elements, in all, for which only `count` and the fingerprint differ; 0: none.
  size_t least, most;

  // This call, made with `elements`, for another number of them.
  Prepared for_count(size_t elements, size_t others) const;
};

// Limit of a call that may hold Python's lock: moved in one or two microseconds.
inline constexpr size_t little_bytes = 16384;

// A call that is not submitted yet.
struct UnsubmittedCall {
  RequestPtr request;
  nanobind::object buffers;  // keeps the memory at its addresses alive
};

// The spare request of a communicator; threads take turns.
RequestPtr take_request(Communicator& engine);
void give_back(Communicator& engine, RequestPtr request);

// Completes the `request` of a collective. `call.input` has the memory that the call reads,
// `call.output` the memory that it writes, counted in units of `unit_bytes`. begin() must follow.
void complete(Request& request, const Prepared& prepared, size_t unit_bytes);
struct Transfer {
  bool sends;
  int peer;  // any_rank: any
  uint64_t tag;
  size_t num_bytes;
};
void complete(Request& request, const Transfer& transfer, std::byte* address);
// The times of a request, which count from now.
void begin(Request& request, double timeout_s);
// Whether both do the same, at any time.
bool are_alike(const Request& one, const Request& other);

// Whether no output shares memory with another output or an input. Counts are in units of
// `unit_bytes`. `shares`: output and input i may be the same memory; a single one is that of
// `rank`.
bool are_apart(std::span<const Span> outputs, std::span<const Span> inputs, size_t unit_bytes,
               size_t rank, bool shares);

// Runs a request to its end, without the GIL.
void run(Communicator& engine, RequestPtr request);
// Starts it, without the GIL; `buffers` live until it is done. `queues`: other calls follow, so do
// not wait for it.
Work start(nanobind::handle communicator, RequestPtr request, nanobind::object buffers,
           bool queues = false);

}  // namespace hccl
