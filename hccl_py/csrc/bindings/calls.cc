#include "bindings/requests.h"

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

// Of a call that may hold Python's lock: moved in a microsecond or two.
constexpr size_t little_bytes = 16384;

RequestPtr collective(Communicator& self, const Prepared& prepared, double timeout_s) {
  RequestPtr request = self.take_request();
  request->kind = RequestKind::collective;
  request->submitted = Clock::now();
  request->deadline = request->submitted + duration_of(timeout_s);
  request->set_plan(prepared.plan);
  request->call.dtype = prepared.dtype;
  request->call.op = prepared.op;
  request->call.fingerprint = prepared.fingerprint;
  request->call.total_bytes = prepared.count * size_of(prepared.dtype);
  request->call.divide = prepared.divide;
  request->call.compression = prepared.compression;
  request->call.residual = nullptr;
  return request;
}

}  // namespace

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

RequestPtr data_request(Communicator& engine, const Prepared& prepared, double timeout_s,
                        std::byte* data) {
  RequestPtr request = collective(engine, prepared, timeout_s);
  request->call.data = {data, prepared.count};
  return request;
}

RequestPtr equal_request(Communicator& engine, const Prepared& prepared, double timeout_s,
                         const EqualBlocks& input, const EqualBlocks& output) {
  RequestPtr request = collective(engine, prepared, timeout_s);
  auto append = [&](std::vector<Span>& blocks, const EqualBlocks& all) {
    size_t num_bytes = all.count * size_of(prepared.dtype);
    for (size_t i = 0; i < all.num_blocks; ++i) {
      blocks.push_back({all.block(i, num_bytes), all.count});
    }
  };
  append(request->call.input, input);
  append(request->call.output, output);
  return request;
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
  engine.give_back(std::move(request));
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

// No plain int if the object holds on to what lies there (hccl_py/memory/exporters.py).
using Address = nb::handle_t<nb::int_>;
// Addresses and elements.
using BlockList = nb::typed<nb::sequence, nb::typed<nb::tuple, nb::int_, nb::int_>>;

std::byte* start_of(Address address) { return pointer(nb::cast<uint64_t>(address)); }

void add_blocks(std::vector<Span>& blocks, const BlockList& list) {
  for (const auto& [address, count] : nb::cast<std::vector<std::tuple<uint64_t, size_t>>>(list)) {
    blocks.push_back({pointer(address), count});
  }
}

void make_prepared(Prepared* self, std::shared_ptr<Plan> plan, int dtype, int op, size_t count,
                   uint64_t fingerprint, bool divide, int compression) {
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
                      static_cast<Compression>(compression)};
}

RequestPtr data_collective(Communicator& self, const Prepared& prepared, double timeout_s,
                           Address address) {
  return data_request(self, prepared, timeout_s, start_of(address));
}

// `residual`: of as many float32 elements as the data.
RequestPtr feedback_collective(Communicator& self, const Prepared& prepared, double timeout_s,
                               Address address, uint64_t residual) {
  RequestPtr request = data_collective(self, prepared, timeout_s, address);
  request->call.residual = pointer(residual);
  return request;
}

RequestPtr block_collective(Communicator& self, const Prepared& prepared, double timeout_s,
                            const BlockList& input, const BlockList& output) {
  RequestPtr request = collective(self, prepared, timeout_s);
  add_blocks(request->call.input, input);
  add_blocks(request->call.output, output);
  return request;
}

// Blocks of `count` elements each.
RequestPtr equal_collective(Communicator& self, const Prepared& prepared, double timeout_s,
                            Address input, size_t num_input, Address output, size_t num_output,
                            size_t count) {
  return equal_request(self, prepared, timeout_s, {start_of(input), num_input, count},
                       {start_of(output), num_output, count});
}

// hccl_py.fingerprint.Transfer: whether it sends, peer (none: any), tag, bytes.
using Transfer = std::tuple<bool, std::optional<int>, uint64_t, size_t>;

RequestPtr transfer(Communicator& self, const Transfer& call, double timeout_s, Address address) {
  auto [sends, peer, tag, num_bytes] = call;
  RequestPtr request = self.take_request();
  request->kind = sends ? RequestKind::send : RequestKind::recv;
  request->submitted = Clock::now();
  request->deadline = request->submitted + duration_of(timeout_s);
  request->address = start_of(address);
  request->num_bytes = num_bytes;
  request->peer = peer.value_or(any_rank);
  request->tag = tag;
  return request;
}

template <typename T>
void keep(nb::object& kept, const T& argument) {
  if constexpr (std::is_base_of_v<nb::handle, T>) {
    if (!PyLong_CheckExact(argument.ptr())) kept = nb::make_tuple(std::move(kept), argument);
  }
}

// The entries of a kind of call, with the same arguments: those of `Build`, then its buffers.
template <auto Build>
struct Entry;
template <typename... Args, RequestPtr (*Build)(Communicator&, Args...)>
struct Entry<Build> {
  // Blocks; the buffers are on the caller's stack anyway.
  static void run(Communicator& self, Args... args, nb::handle) {
    hccl::run(self, Build(self, args...));
  }

  template <bool Queues>
  static Work start(nb::pointer_and_handle<Communicator> self, Args... args, nb::object buffers) {
    RequestPtr request = Build(*self.p, args...);
    (keep(buffers, args), ...);
    return hccl::start(self.h, std::move(request), std::move(buffers), Queues);
  }

  static RecordedCall record(Communicator& self, Args... args, nb::object buffers) {
    RequestPtr request = Build(self, args...);
    (keep(buffers, args), ...);
    return {std::move(request), std::move(buffers)};
  }
};

template <auto Build>
void bind_entries(nb::class_<Communicator>& communicator, const std::string& kind) {
  communicator.def(("run_" + kind).c_str(), &Entry<Build>::run)
      .def(("start_" + kind).c_str(), &Entry<Build>::template start<false>)
      .def(("queue_" + kind).c_str(), &Entry<Build>::template start<true>)
      .def(("record_" + kind).c_str(), &Entry<Build>::record);
}

// An op as `lower` writes it: kind, first peer, number of peers, destination, source.
using Row = std::array<int, 12>;

std::shared_ptr<Plan> make_plan(const std::vector<Row>& ops, std::vector<int> peers,
                                std::vector<uint8_t> compressed, std::vector<int> steps,
                                int data_chunks, int scratch_slots, int max_chunk_span,
                                size_t min_message_bytes, bool long_messages, bool by_step,
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
  plan->scratch_slots = scratch_slots;
  plan->max_chunk_span = max_chunk_span;
  plan->min_message_bytes = min_message_bytes;
  plan->long_messages = long_messages;
  plan->by_step = by_step;
  plan->reduces = reduces;
  plan->validate(rank, world_size);
  return plan;
}

}  // namespace

void bind_calls(nb::module_& module, nb::class_<Communicator>& communicator) {
  nb::class_<Plan>(module, "Plan");
  module.def("make_plan", &make_plan, nb::arg("ops"), nb::arg("peers"), nb::arg("compressed"),
             nb::arg("steps"), nb::arg("data_chunks"), nb::arg("scratch_slots"),
             nb::arg("max_chunk_span"), nb::arg("min_message_bytes"), nb::arg("long_messages"),
             nb::arg("by_step"), nb::arg("reduces"), nb::arg("rank"), nb::arg("world_size"));

  nb::class_<Prepared>(module, "Prepared")
      .def("__init__", &make_prepared)
      .def_ro("fingerprint", &Prepared::fingerprint)
      .def_prop_ro("compressed",
                   [](const Prepared& p) { return p.compression != Compression::none; });

  nb::class_<Work>(module, "Work")
      .def("wait", &Work::wait)
      .def("done", [](const Work& w) { return w.request->is_done(); })
      .def("failed", [](const Work& w) { return w.request->is_done() && w.request->failure; })
      .def("source",
           [](const Work& w) { return w.request->is_done() ? w.request->peer : any_rank; });

  nb::class_<RecordedCall>(module, "RecordedCall");
  bind_entries<data_collective>(communicator, "data");
  bind_entries<block_collective>(communicator, "blocks");
  bind_entries<equal_collective>(communicator, "equal");
  bind_entries<feedback_collective>(communicator, "feedback");
  bind_entries<transfer>(communicator, "transfer");
}

}  // namespace hccl
