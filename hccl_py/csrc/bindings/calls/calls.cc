#include "bindings/calls/requests.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace hccl {

void check_signals() {
  nb::gil_scoped_acquire gil;
  rethrow_stream_interruption();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

nb::ft_mutex spare_requests;

}  // namespace

void begin(Request& request, double timeout_s) {
  request.submitted = Clock::now();
  request.deadline = request.submitted + duration_of(timeout_s);
}

RequestPtr take_request(Communicator& engine) {
  nb::ft_lock_guard guard(spare_requests);
  return engine.take_request();
}

void give_back(Communicator& engine, RequestPtr request) {
  nb::ft_lock_guard guard(spare_requests);
  engine.give_back(std::move(request));
}

bool Work::wait(double timeout_s) {
  auto& engine = *nb::inst_ptr<Communicator>(communicator);
  bool finished;
  {
    nb::gil_scoped_release release;
    finished = engine.wait(request, Clock::now() + duration_of(timeout_s), check_signals);
  }
  if (finished) buffers = nb::none();
  return finished;
}

Prepared Prepared::for_count(size_t elements, size_t others) const {
  // As in hccl_py/fingerprint.py.
  constexpr int count_shift = 42;
  constexpr size_t large_count = size_t{1} << 21, modulus = 2097143;
  Prepared made = *this;
  made.count = count / elements * others;
  if (fingerprint >> count_shift != 0) {
    uint64_t field = others < large_count ? others : large_count + others % modulus;
    made.fingerprint = (fingerprint & ((uint64_t{1} << count_shift) - 1)) | field << count_shift;
  }
  return made;
}

void complete(Request& request, const Prepared& prepared, size_t unit_bytes) {
  request.kind = RequestKind::collective;
  request.set_plan(prepared.plan);
  Call& call = request.call;
  call.dtype = prepared.dtype;
  call.op = prepared.op;
  call.fingerprint = prepared.fingerprint;
  size_t item_bytes = size_of(prepared.dtype);
  call.total_bytes = prepared.count * item_bytes;
  call.divide = prepared.divide;
  call.compression = prepared.compression;
  call.residual = nullptr;
  call.source = nullptr;
  if (prepared.plan->data_chunks > 0) {
    std::byte* source = call.input.empty() ? nullptr : call.input[0].address;
    std::byte* data = !call.output.empty() ? call.output[0].address : source;
    call.data = {data ? data : &request.byte, prepared.count};
    if (source != data) call.source = source;
    call.input.clear();
    call.output.clear();
  } else if (unit_bytes != item_bytes) {
    for (Span& block : call.input) block.count = block.count * unit_bytes / item_bytes;
    for (Span& block : call.output) block.count = block.count * unit_bytes / item_bytes;
  }
}

void complete(Request& request, const Transfer& transfer, std::byte* address) {
  request.kind = transfer.sends ? RequestKind::send : RequestKind::recv;
  request.address = address;
  request.num_bytes = transfer.num_bytes;
  request.peer = transfer.peer;
  request.tag = transfer.tag;
}

bool are_alike(const Request& one, const Request& other) {
  if (one.kind != other.kind) return false;
  if (one.deadline - one.submitted != other.deadline - other.submitted) return false;
  auto of_transfer = [](const Request& r) {
    return std::tuple(r.peer, r.tag, r.address, r.num_bytes);
  };
  if (one.kind != RequestKind::collective) return of_transfer(one) == of_transfer(other);
  auto of_collective = [](const Request& r) {
    const Call& c = r.call;
    bool has_data = c.plan->data_chunks > 0 && c.data.address != &r.byte;
    return std::tuple(*c.plan, has_data ? c.data : Span(), c.source, c.input, c.output, c.dtype,
                      c.op, c.compression, c.residual, c.fingerprint, c.total_bytes, c.divide);
  };
  return of_collective(one) == of_collective(other);
}

void run(Communicator& engine, RequestPtr request) {
  bool is_collective = request->kind == RequestKind::collective;
  bool is_little = (is_collective ? request->call.num_bytes() : request->num_bytes) <= little_bytes;
  if (!is_little) {
    nb::gil_scoped_release release;
    engine.run(request, check_signals);
  } else if (!engine.run_briefly(request)) {
    nb::gil_scoped_release release;
    engine.finish(request, check_signals);
  }
  give_back(engine, std::move(request));
}

Work start(nb::handle communicator, RequestPtr request, nb::object buffers, bool queues) {
  {
    nb::gil_scoped_release release;
    auto& engine = *nb::inst_ptr<Communicator>(communicator);
    queues ? engine.start(request) : engine.start_moving(request);
  }
  return {nb::borrow(communicator), std::move(request), std::move(buffers)};
}

namespace {

// Addresses and bytes.
using BlockList = nb::typed<nb::sequence, nb::typed<nb::tuple, nb::int_, nb::int_>>;

void add_blocks(std::vector<Span>& blocks, const BlockList& list) {
  for (const auto& [address, bytes] : nb::cast<std::vector<std::tuple<uint64_t, size_t>>>(list)) {
    blocks.push_back({pointer(address), bytes});
  }
}

void make_prepared(Prepared* self, std::shared_ptr<Plan> plan, int dtype, int op, size_t count,
                   uint64_t fingerprint, bool divide, int compression, size_t least, size_t most) {
  if (dtype < 0 || dtype >= num_dtypes || op < 0 || op >= num_reduce_ops) {
    throw std::invalid_argument("no such element type or reduce op");
  }
  if (compression < 0 || compression >= num_compressions ||
      (compression != 0 && static_cast<DType>(dtype) != DType::float32)) {
    throw std::invalid_argument("no such compression, or not of these elements");
  }
  new (self) Prepared{std::move(plan),
                      static_cast<DType>(dtype),
                      static_cast<ReduceOp>(op),
                      count,
                      fingerprint,
                      divide,
                      static_cast<Compression>(compression),
                      least,
                      most};
}

// `residual`: of as many float32 elements as the data; 0: none.
UnsubmittedCall make_collective(Communicator& engine, const Prepared& prepared, double timeout_s,
                                const BlockList& read, const BlockList& written, uint64_t residual,
                                nb::object buffers) {
  RequestPtr request = take_request(engine);
  add_blocks(request->call.input, read);
  add_blocks(request->call.output, written);
  complete(*request, prepared, 1);
  begin(*request, timeout_s);
  request->call.residual = pointer(residual);
  return {std::move(request), std::move(buffers)};
}

// hccl_py.fingerprint.Transfer.
using PythonTransfer = std::tuple<bool, std::optional<int>, uint64_t, size_t>;

UnsubmittedCall make_transfer(Communicator& engine, const PythonTransfer& call, double timeout_s,
                              uint64_t address, nb::object buffers) {
  auto [sends, peer, tag, num_bytes] = call;
  RequestPtr request = take_request(engine);
  complete(*request, {sends, peer.value_or(any_rank), tag, num_bytes}, pointer(address));
  begin(*request, timeout_s);
  return {std::move(request), std::move(buffers)};
}

template <bool Queues>
Work start_call(nb::handle_t<Communicator> self, UnsubmittedCall& call) {
  return start(self, std::move(call.request), std::move(call.buffers), Queues);
}

// An op as `lower` writes it: kind, first peer, number of peers, destination, source.
using Row = std::array<int, 12>;

std::shared_ptr<Plan> make_plan(const std::vector<Row>& ops, std::vector<int> peers,
                                std::vector<uint8_t> compressed, std::vector<int> steps,
                                int data_chunks, int block_parts, int scratch_slots,
                                int max_chunk_span, size_t min_message_bytes, bool long_messages,
                                bool reduces, int rank, int world_size) {
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
  plan->compressed = std::move(compressed);
  plan->steps = std::move(steps);
  plan->data_chunks = data_chunks;
  plan->block_parts = block_parts;
  plan->scratch_slots = scratch_slots;
  plan->max_chunk_span = max_chunk_span;
  plan->min_message_bytes = min_message_bytes;
  plan->long_messages = long_messages;
  plan->reduces = reduces;
  plan->validate(rank, world_size);
  return plan;
}

}  // namespace

void bind_calls(nb::module_& module, nb::class_<Communicator>& communicator) {
  nb::class_<Plan>(module, "Plan");
  module.def("make_plan", &make_plan, nb::arg("ops"), nb::arg("peers"), nb::arg("compressed"),
             nb::arg("steps"), nb::arg("data_chunks"), nb::arg("block_parts"),
             nb::arg("scratch_slots"), nb::arg("max_chunk_span"), nb::arg("min_message_bytes"),
             nb::arg("long_messages"), nb::arg("reduces"), nb::arg("rank"), nb::arg("world_size"));

  nb::class_<Prepared>(module, "Prepared")
      .def("__init__", &make_prepared)
      .def_ro("plan", &Prepared::plan)
      .def_ro("count", &Prepared::count)
      .def_ro("fingerprint", &Prepared::fingerprint)
      .def_prop_ro("compressed",
                   [](const Prepared& p) { return p.compression != Compression::none; });

  nb::class_<Work>(module, "Work")
      .def("wait", &Work::wait, nb::lock_self())
      .def("done", [](const Work& w) { return w.request->is_done(); })
      .def("failed", [](const Work& w) { return w.request->is_done() && w.request->failure; })
      .def("source",
           [](const Work& w) { return w.request->is_done() ? w.request->peer : any_rank; });

  nb::class_<UnsubmittedCall>(module, "UnsubmittedCall");
  communicator.def("make_collective", &make_collective)
      .def("make_transfer", &make_transfer)
      // Consumes the call; returns when it has ended.
      .def("run", [](Communicator& c, UnsubmittedCall& call) { run(c, std::move(call.request)); })
      .def("start", &start_call<false>)
      // For a call of a group, whose other calls peers may begin first: does not wait.
      .def("queue", &start_call<true>);
}

}  // namespace hccl
