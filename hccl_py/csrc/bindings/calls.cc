#include "bindings/bindings.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace hccl {

namespace {

using Address = uint64_t;
using BlockList = std::vector<std::tuple<Address, size_t>>;
constexpr double longest_timeout_s = 1e8;  // three years: beyond it the clock would overflow

std::byte* pointer(Address address) { return reinterpret_cast<std::byte*>(address); }

Deadline after(Deadline now, double timeout_s) {
  double seconds = std::clamp(timeout_s, 0.0, longest_timeout_s);
  return now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void check_signals() {
  nb::gil_scoped_acquire gil;
  rethrow_stream_interruption();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// A submitted request; keeps the Python objects whose memory it uses alive until it is done.
struct Work {
  std::shared_ptr<Communicator> communicator;
  RequestPtr request;
  nb::object buffers;

  bool wait(double timeout_s) {
    bool finished;
    {
      nb::gil_scoped_release release;
      finished = communicator->wait(request, after(Clock::now(), timeout_s), check_signals);
    }
    if (finished) buffers = nb::none();
    return finished;
  }
};

RequestPtr take(PyCommunicator& self) {
  RequestPtr request = std::move(self.spare);
  self.spare = nullptr;
  if (!request || request.use_count() != 1) return std::make_shared<Request>();
  return request;
}

void give_back(PyCommunicator& self, RequestPtr request) {
  request->plan = nullptr;
  request->call.input.clear();
  request->call.output.clear();
  request->failure = nullptr;
  request->done.store(false, std::memory_order_relaxed);
  self.spare = std::move(request);
}

void run(PyCommunicator& self, RequestPtr request) {
  {
    nb::gil_scoped_release release;
    self.engine->run(request, check_signals);
  }
  give_back(self, std::move(request));
}

Work start(PyCommunicator& self, RequestPtr request, nb::object buffers) {
  {
    nb::gil_scoped_release release;
    self.engine->start(request);
  }
  return Work{self.engine, std::move(request), std::move(buffers)};
}

// All of a collective that its ranks agree on: one object, since each argument of a call costs.
struct Prepared {
  Prepared(std::shared_ptr<Plan> its_plan, int its_dtype, int its_op, size_t its_count,
           uint64_t its_fingerprint)
      : plan(std::move(its_plan)),
        dtype(static_cast<DType>(its_dtype)),
        op(static_cast<ReduceOp>(its_op)),
        count(its_count),
        fingerprint(its_fingerprint) {
    if (its_dtype < 0 || its_dtype >= num_dtypes || its_op < 0 || its_op >= num_reduce_ops) {
      throw std::invalid_argument("no such element type or reduce op");
    }
  }

  std::shared_ptr<Plan> plan;
  DType dtype;
  ReduceOp op;
  size_t count;
  uint64_t fingerprint;
};

RequestPtr collective(PyCommunicator& self, const Prepared& prepared, double timeout_s) {
  RequestPtr request = take(self);
  request->kind = RequestKind::collective;
  request->submitted = Clock::now();
  request->deadline = after(request->submitted, timeout_s);
  request->plan = prepared.plan;
  request->call.plan = prepared.plan.get();
  request->call.dtype = prepared.dtype;
  request->call.op = prepared.op;
  request->call.fingerprint = prepared.fingerprint;
  request->call.total_bytes = prepared.count * size_of(prepared.dtype);
  request->call.divide_data = false;
  request->call.divide_output = false;
  return request;
}

RequestPtr data_collective(PyCommunicator& self, const Prepared& prepared, double timeout_s,
                           Address address, bool divide) {
  RequestPtr request = collective(self, prepared, timeout_s);
  request->call.data = {pointer(address), prepared.count};
  request->call.divide_data = divide;
  return request;
}

void set_blocks(std::vector<Block>& blocks, const BlockList& list) {
  for (auto [address, count] : list) blocks.push_back({pointer(address), count});
}

RequestPtr block_collective(PyCommunicator& self, const Prepared& prepared, double timeout_s,
                            const BlockList& input, const BlockList& output, bool divide) {
  RequestPtr request = collective(self, prepared, timeout_s);
  set_blocks(request->call.input, input);
  set_blocks(request->call.output, output);
  request->call.divide_output = divide;
  return request;
}

// `num` blocks of one length, one behind the other.
struct EqualBlocks {
  Address address;
  size_t num;
};

void set_equal_blocks(std::vector<Block>& blocks, EqualBlocks equal, size_t count, DType dtype) {
  size_t num_bytes = count * size_of(dtype);
  for (size_t i = 0; i < equal.num; ++i) {
    blocks.push_back({pointer(equal.address + i * num_bytes), count});
  }
}

RequestPtr equal_collective(PyCommunicator& self, const Prepared& prepared, double timeout_s,
                            EqualBlocks input, EqualBlocks output, size_t count, bool divide) {
  RequestPtr request = collective(self, prepared, timeout_s);
  set_equal_blocks(request->call.input, input, count, prepared.dtype);
  set_equal_blocks(request->call.output, output, count, prepared.dtype);
  request->call.divide_output = divide;
  return request;
}

RequestPtr transfer(PyCommunicator& self, RequestKind kind, Address address, size_t num_bytes,
                    int peer, uint64_t tag, double timeout_s) {
  RequestPtr request = take(self);
  request->kind = kind;
  request->submitted = Clock::now();
  request->deadline = after(request->submitted, timeout_s);
  request->address = pointer(address);
  request->num_bytes = num_bytes;
  request->peer = peer;
  request->tag = tag;
  return request;
}

// What a background call keeps alive: its buffers, and an address that is no plain int, because it
// holds on to what lies there (hccl_py/memory/exporters.py).
nb::object kept(nb::object buffers, nb::object address) {
  if (PyLong_CheckExact(address.ptr())) return buffers;
  return nb::make_tuple(std::move(buffers), std::move(address));
}

// An op as `lower` writes it: kind, first peer, number of peers, destination, source.
using Row = std::array<int, 12>;

std::shared_ptr<Plan> make_plan(const std::vector<Row>& ops, std::vector<int> peers,
                                int data_chunks, int scratch_slots, int max_chunk_span,
                                size_t min_message_bytes, int rank, int world_size) {
  auto plan = std::make_shared<Plan>();
  plan->ops.reserve(ops.size());
  for (const Row& row : ops) {
    if (row[0] < 0 || row[0] > 3) throw std::invalid_argument("malformed plan: kind of an op");
    auto chunk = [&](size_t at) {
      return ChunkRef{static_cast<Buffer>(row[at]), row[at + 1], row[at + 2], row[at + 3]};
    };
    plan->ops.push_back({static_cast<OpKind>(row[0]), row[1], row[2], chunk(3), chunk(7), row[11]});
  }
  plan->peers = std::move(peers);
  plan->data_chunks = data_chunks;
  plan->scratch_slots = scratch_slots;
  plan->max_chunk_span = max_chunk_span;
  plan->min_message_bytes = min_message_bytes;
  plan->validate(rank, world_size);
  return plan;
}

}  // namespace

void bind_calls(nb::module_& module, nb::class_<PyCommunicator>& communicator) {
  nb::class_<Plan>(module, "Plan");
  module.def("make_plan", &make_plan, nb::arg("ops"), nb::arg("peers"),
             nb::arg("data_chunks"), nb::arg("scratch_slots"), nb::arg("max_chunk_span"),
             nb::arg("min_message_bytes"), nb::arg("rank"), nb::arg("world_size"));

  nb::class_<Prepared>(module, "Prepared")
      .def(nb::init<std::shared_ptr<Plan>, int, int, size_t, uint64_t>())
      .def_ro("fingerprint", &Prepared::fingerprint);

  nb::class_<Work>(module, "Work")
      .def("wait", &Work::wait)
      .def("done", [](const Work& w) { return w.request->is_done(); })
      .def("failed",
[](const Work& w) { return w.request->is_done() && w.request->failure; })
      .def("source",
           [](const Work& w) { return w.request->is_done() ? w.request->peer : any_rank; });

  communicator
      // run_ and start_ take the same arguments; a blocking call's buffers are on its stack anyway.
      .def("run_data",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, Address address,
              bool divide, nb::handle) {
             run(c, data_collective(c, prepared, timeout_s, address, divide));
           })
      .def("start_data",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, nb::object address,
              bool divide, nb::object buffers) {
             return start(
                 c, data_collective(c, prepared, timeout_s, nb::cast<Address>(address), divide),
                 kept(buffers, address));
           })
      .def("run_blocks",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s,
              const BlockList& input, const BlockList& output, bool divide, nb::handle) {
             run(c, block_collective(c, prepared, timeout_s, input, output, divide));
           })
      .def("start_blocks",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s,
              nb::object input, nb::object output, bool divide, nb::object buffers) {
             return start(
                 c, block_collective(c, prepared, timeout_s, nb::cast<BlockList>(input),
                                     nb::cast<BlockList>(output), divide),
                 nb::make_tuple(buffers, input, output));
           })
      .def("run_equal",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, Address input,
              size_t num_input, Address output, size_t num_output, size_t count, bool divide,
              nb::handle) {
             run(c, equal_collective(c, prepared, timeout_s, {input, num_input},
                                     {output, num_output}, count, divide));
           })
      .def("start_equal",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, nb::object input,
              size_t num_input, nb::object output, size_t num_output, size_t count, bool divide,
              nb::object buffers) {
             return start(
                 c, equal_collective(c, prepared, timeout_s, {nb::cast<Address>(input), num_input},
                                     {nb::cast<Address>(output), num_output}, count, divide),
                 kept(kept(buffers, input), output));
           })
      .def("run_transfer",
           [](PyCommunicator& c, bool sends, Address address, size_t num_bytes, int peer,
              uint64_t tag, double timeout_s, nb::handle) {
             RequestKind kind = sends ? RequestKind::send : RequestKind::recv;
             run(c, transfer(c, kind, address, num_bytes, peer, tag, timeout_s));
           })
      .def("start_transfer",
           [](PyCommunicator& c, bool sends, nb::object address, size_t num_bytes, int peer,
              uint64_t tag, double timeout_s, nb::object buffers) {
             RequestKind kind = sends ? RequestKind::send : RequestKind::recv;
             return start(
                 c, transfer(c, kind, nb::cast<Address>(address), num_bytes, peer, tag, timeout_s),
                 kept(buffers, address));
           });
}

}  // namespace hccl
