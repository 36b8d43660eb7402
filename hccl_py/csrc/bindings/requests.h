// What a call of Python becomes on its way to the engine. Everything is called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "bindings/bindings.h"

namespace hccl {

// A submitted request; keeps the Python objects whose memory it uses alive until it is done.
struct Work {
  nanobind::object communicator;
  RequestPtr request;
  nanobind::object buffers;

  bool wait(double timeout_s);
};

// All of a collective that its ranks agree on: one object, since each argument of a call costs.
struct Prepared {
  std::shared_ptr<Plan> plan;
  DType dtype;
  ReduceOp op;
  size_t count;
  uint64_t fingerprint;
  bool divide;
  Compression compression;
};

// A call that a graph is to make; not submitted.
struct RecordedCall {
  RequestPtr request;
  nanobind::object buffers;  // keeps what lies at its addresses
};

// Blocks of `count` elements each: where `each` says, or one behind the other.
struct EqualBlocks {
  std::byte* address;
  size_t num_blocks;
  size_t count;
  std::byte* const* each = nullptr;

  std::byte* block(size_t index, size_t block_bytes) const {
    return each ? each[index] : address + index * block_bytes;
  }
};

// Whether no two of the blocks share memory, but for the block of this rank that is the same memory
// in both. Costs a few comparisons: each known call asks. False if it would take more to find out.
bool are_apart(const EqualBlocks& outputs, const EqualBlocks& inputs, size_t block_bytes,
               size_t rank);

RequestPtr data_request(Communicator& engine, const Prepared& prepared, double timeout_s,
                        std::byte* data);
RequestPtr equal_request(Communicator& engine, const Prepared& prepared, double timeout_s,
                         const EqualBlocks& input, const EqualBlocks& output);

// Runs a request to its end, without the GIL.
void run(Communicator& engine, RequestPtr request);
// Starts it, without the GIL; `buffers` live until it is done. `queues`: others follow, so nothing
// of it is waited for.
Work start(nanobind::handle communicator, RequestPtr request, nanobind::object buffers,
           bool queues = false);

}  // namespace hccl
