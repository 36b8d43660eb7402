// The Python face of the engine, one-to-one with the headers. No logic lives here: it turns Python
// arguments into a Request, releases the GIL, and turns a Failure into an exception.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings_arena.h"
#include "bindings_dlpack.h"
#include "bindings_failure.h"
#include "bindings_perftest.h"
#include "bindings_provider.h"
#include "bindings_recorder.h"
#include "bindings_stream.h"
#include "bindings_verbs.h"
#include "communicator.h"
#include "idle.h"
#include "loopback.h"
#include "progress_thread.h"
#include "reduce.h"

namespace nb = nanobind;
using namespace hccl;

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

// The Communicator as Python holds it. The GIL guards `spare`.
struct PyCommunicator {
  std::shared_ptr<Communicator> engine;
  RequestPtr spare;

  RequestPtr take() {
    RequestPtr request = std::move(spare);
    spare = nullptr;
    if (!request || request.use_count() != 1) return std::make_shared<Request>();
    return request;
  }

  void give_back(RequestPtr request) {
    request->plan = nullptr;
    request->call.input.clear();
    request->call.output.clear();
    request->failure = Failure{};
    request->done.store(false, std::memory_order_relaxed);
    spare = std::move(request);
  }

  void run(RequestPtr request) {
    {
      nb::gil_scoped_release release;
      engine->run(request, check_signals);
    }
    give_back(std::move(request));
  }

  Work start(RequestPtr request, nb::object buffers) {
    {
      nb::gil_scoped_release release;
      engine->start(request);
    }
    return Work{engine, std::move(request), std::move(buffers)};
  }
};

// All of a collective that its ranks agree on: one object, since each argument of a call costs.
struct Prepared {
  Prepared(std::shared_ptr<Plan> its_plan, int its_dtype, int its_op, size_t its_count,
           uint64_t its_fingerprint, int its_collective, int its_root)
      : plan(std::move(its_plan)),
        dtype(static_cast<DType>(its_dtype)),
        op(static_cast<ReduceOp>(its_op)),
        count(its_count),
        fingerprint(its_fingerprint),
        collective(static_cast<Collective>(its_collective)),
        root(its_root) {
    if (its_dtype < 0 || its_dtype >= num_dtypes || its_op < 0 || its_op >= num_reduce_ops ||
        its_collective < 0 || its_collective >= num_collectives) {
      throw std::invalid_argument("no such element type, reduce op or collective");
    }
  }

  std::shared_ptr<Plan> plan;
  DType dtype;
  ReduceOp op;
  size_t count;
  uint64_t fingerprint;
  Collective collective;
  int root;
};

RequestPtr collective(PyCommunicator& self, const Prepared& prepared, double timeout_s) {
  RequestPtr request = self.take();
  request->kind = RequestKind::collective;
  request->submitted = Clock::now();
  request->deadline = after(request->submitted, timeout_s);
  request->plan = prepared.plan;
  request->call.plan = prepared.plan.get();
  request->call.dtype = prepared.dtype;
  request->call.op = prepared.op;
  request->call.fingerprint = prepared.fingerprint;
  request->call.collective = prepared.collective;
  request->call.root = prepared.root;
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
  RequestPtr request = self.take();
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
// holds on to what lies there (hccl_py/foreign.py).
nb::object kept(nb::object buffers, nb::object address) {
  if (PyLong_CheckExact(address.ptr())) return buffers;
  return nb::make_tuple(std::move(buffers), std::move(address));
}

std::shared_ptr<Plan> make_plan(const std::vector<std::vector<int>>& ops, std::vector<int> peers,
                                const std::vector<std::tuple<int, int>>& first_messages,
                                int data_chunks, int scratch_slots, int max_chunk_span,
                                size_t min_message_bytes, int rank, int world_size) {
  auto plan = std::make_shared<Plan>();
  for (const std::vector<int>& row : ops) {
    if (row.size() != 12 || row[0] < 0 || row[0] > 3) {
      throw std::invalid_argument("malformed plan: an op is 12 numbers");
    }
    auto chunk = [&](size_t at) {
      return ChunkRef{static_cast<Buffer>(row[at]), row[at + 1], row[at + 2], row[at + 3]};
    };
    plan->ops.push_back(
        {static_cast<OpKind>(row[0]), row[1], row[2], chunk(3), chunk(7), row[11] != 0});
  }
  for (auto [op, peer] : first_messages) plan->first_messages.push_back({op, peer});
  plan->peers = std::move(peers);
  plan->data_chunks = data_chunks;
  plan->scratch_slots = scratch_slots;
  plan->max_chunk_span = max_chunk_span;
  plan->min_message_bytes = min_message_bytes;
  plan->validate(rank, world_size);
  return plan;
}

// A peer whose registered memory cannot be mapped here is a peer all the same.
std::shared_ptr<ArenaWindow> open_peer_arena(const Communicator& engine, Descriptor memory) {
  if (!engine.arena()) return nullptr;
  try {
    return engine.arena()->open_peer(std::move(memory));
  } catch (const std::system_error&) {
    return nullptr;
  }
}

PyCommunicator make_communicator(std::shared_ptr<ProgressThread> progress, int rank,
                                 int world_size, std::vector<int> local_ranks, int num_channels,
                                 int num_slots, size_t slot_bytes,
                                 std::shared_ptr<Arena> arena, bool checksum,
                                 double path_timeout_s) {
  CommunicatorOptions options;
  options.checksum = checksum;
  options.path_timeout_s = path_timeout_s;
  options.rank = rank;
  options.world_size = world_size;
  options.num_channels = num_channels;
  options.segment.num_local_ranks = static_cast<int>(local_ranks.size());
  options.segment.num_channels = num_channels + 1;
  options.segment.num_slots = num_slots;
  options.segment.slot_bytes = slot_bytes;
  options.local_ranks = std::move(local_ranks);
  options.arena = std::move(arena);
  return {std::make_shared<Communicator>(options, std::move(progress)), nullptr};
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The C++ data path of hccl-py.";
  nb::set_leak_warnings(false);  // ranks may leave with works in flight

  bind_failure(module);

  module.def("usable_cores", &usable_cores);
  // The address of a C-contiguous buffer, writable if it has to be; raises ValueError or
  // BufferError for others.
  module.def("address_of", [](nb::handle buffer, bool writable) {
    Py_buffer view;
    int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(buffer.ptr(), &view, flags) != 0) throw nb::python_error();
    Address address = reinterpret_cast<Address>(view.buf);
    PyBuffer_Release(&view);
    return address;
  });
  // For a forked child: what belongs to its parent must not say goodbye in the parent's name.
  module.def("leak", [](nb::object object) { object.inc_ref(); });
  module.def("reduce_instruction_set", &reduce_instruction_set);
  module.def("reduce_supported", [](int dtype, int op) {
    return reduce_supported(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
  });

  module.def("multiply",
             [](int dtype, Address to, Address from, size_t count, double factor) {
               return multiply(static_cast<DType>(dtype), pointer(to), pointer(from), count, factor);
             },
             nb::call_guard<nb::gil_scoped_release>());

  bind_arena(module);
  bind_dlpack(module);
  bind_provider();
  bind_signal_bell(module);
  bind_stream(module);
  bind_verbs(module);
  bind_perftest(module);

  nb::class_<Plan>(module, "Plan");
  module.def("make_plan", &make_plan, nb::arg("ops"), nb::arg("peers"),
             nb::arg("first_messages"), nb::arg("data_chunks"), nb::arg("scratch_slots"),
             nb::arg("max_chunk_span"),
             nb::arg("min_message_bytes"), nb::arg("rank"), nb::arg("world_size"));

  nb::class_<Prepared>(module, "Prepared")
      .def(nb::init<std::shared_ptr<Plan>, int, int, size_t, uint64_t, int, int>())
      .def_ro("fingerprint", &Prepared::fingerprint);

  nb::class_<ProgressThread>(module, "ProgressThread")
      .def(nb::init<>())
      .def("stop", &ProgressThread::stop, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Work>(module, "Work")
      .def("wait", &Work::wait)
      .def("done", [](const Work& w) { return w.request->is_done(); })
      .def("failed",
           [](const Work& w) {
             return w.request->is_done() && w.request->failure.kind != FailureKind::none;
           })
      .def("source", [](const Work& w) { return w.request->is_done() ? w.request->peer : any_rank; });

  nb::class_<PyCommunicator>(module, "Communicator")
      .def_static("create", &make_communicator, nb::arg("progress"), nb::arg("rank"),
                  nb::arg("world_size"), nb::arg("local_ranks"), nb::arg("num_channels"),
                  nb::arg("num_slots"), nb::arg("slot_bytes"), nb::arg("arena").none(),
                  nb::arg("checksum") = false,
                  nb::arg("path_timeout_s") = CommunicatorOptions().path_timeout_s)
      .def("segment_fd", [](PyCommunicator& c) { return c.engine->segment_fd(); })
      .def("doorbell_fd", [](PyCommunicator& c) { return c.engine->doorbell_fd(); })
      .def("set_checks", [](PyCommunicator& c, bool checks) { c.engine->set_checks(checks); })
      .def("set_ranks_on_host",
           [](PyCommunicator& c, int ranks) { c.engine->set_ranks_on_host(ranks); })
      .def("add_shm_peer",
           [](PyCommunicator& c, int peer, int segment_fd, int doorbell_fd, int arena_fd,
              int control_fd) {
             Descriptor doorbell(doorbell_fd), arena(arena_fd), control(control_fd);
             auto theirs = Segment::open(Descriptor(segment_fd), c.engine->segment()->shape());
             auto window = open_peer_arena(*c.engine, std::move(arena));
             c.engine->add_shm_peer(peer, std::move(theirs), std::move(doorbell),
                                    std::move(control));
             c.engine->set_peer_arena(peer, std::move(window));
           })
      .def("add_tcp_peer",
           [](PyCommunicator& c, int peer, const std::vector<nb::list>& lanes,
              const nb::list& controls, std::vector<std::string> names) {
             TcpConnections connections;
             for (const nb::list& paths : lanes) connections.lanes.push_back(streams_of(paths));
             connections.controls = streams_of(controls);
             connections.names = std::move(names);
             c.engine->add_tcp_peer(peer, std::move(connections));
           })
      .def("add_lanes",
           [](PyCommunicator& c, int peer, const std::vector<nb::object>& lanes, int control_fd) {
             Descriptor control(control_fd);
             add_python_lanes(*c.engine, peer, lanes, std::move(control));
           })
      .def("repair_fd", [](PyCommunicator& c) { return c.engine->repair_fd(); })
      .def("take_broken",
           [](PyCommunicator& c) {
             std::vector<Broken> broken;
             {
               nb::gil_scoped_release release;
               broken = c.engine->take_broken();
             }
             nb::list result;
             for (const Broken& b : broken) result.append(nb::make_tuple(b.peer, b.index, b.path));
             return result;
           })
      .def("replace_connection",
           [](PyCommunicator& c, int peer, int index, int path, nb::handle connection) {
             std::shared_ptr<Stream> stream = stream_of(connection);
             nb::gil_scoped_release release;
             c.engine->replace_connection({peer, index, path}, std::move(stream));
           })
      .def("path_statistics",
           [](PyCommunicator& c) { return path_statistics(c.engine->path_statistics()); })
      // run_ and start_ take the same arguments; a blocking call's buffers are on its stack anyway.
      .def("run_data",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, Address address,
              bool divide, nb::handle) {
             c.run(data_collective(c, prepared, timeout_s, address, divide));
           })
      .def("start_data",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, nb::object address,
              bool divide, nb::object buffers) {
             return c.start(data_collective(c, prepared, timeout_s, nb::cast<Address>(address), divide),
                            kept(buffers, address));
           })
      .def("run_blocks",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s,
              const BlockList& input, const BlockList& output, bool divide, nb::handle) {
             c.run(block_collective(c, prepared, timeout_s, input, output, divide));
           })
      .def("start_blocks",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s,
              nb::object input, nb::object output, bool divide, nb::object buffers) {
             return c.start(
                 block_collective(c, prepared, timeout_s, nb::cast<BlockList>(input),
                                  nb::cast<BlockList>(output), divide),
                 nb::make_tuple(buffers, input, output));
           })
      .def("run_equal",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, Address input,
              size_t num_input, Address output, size_t num_output, size_t count, bool divide,
              nb::handle) {
             c.run(equal_collective(c, prepared, timeout_s, {input, num_input},
                                    {output, num_output}, count, divide));
           })
      .def("start_equal",
           [](PyCommunicator& c, const Prepared& prepared, double timeout_s, nb::object input,
              size_t num_input, nb::object output, size_t num_output, size_t count, bool divide,
              nb::object buffers) {
             return c.start(
                 equal_collective(c, prepared, timeout_s, {nb::cast<Address>(input), num_input},
                                  {nb::cast<Address>(output), num_output}, count, divide),
                 kept(kept(buffers, input), output));
           })
      .def("run_transfer",
           [](PyCommunicator& c, bool sends, Address address, size_t num_bytes, int peer,
              uint64_t tag, double timeout_s, nb::handle) {
             RequestKind kind = sends ? RequestKind::send : RequestKind::recv;
             c.run(transfer(c, kind, address, num_bytes, peer, tag, timeout_s));
           })
      .def("start_transfer",
           [](PyCommunicator& c, bool sends, nb::object address, size_t num_bytes, int peer,
              uint64_t tag, double timeout_s, nb::object buffers) {
             RequestKind kind = sends ? RequestKind::send : RequestKind::recv;
             return c.start(transfer(c, kind, nb::cast<Address>(address), num_bytes, peer, tag,
                                     timeout_s),
                            kept(buffers, address));
           })
      .def("sequence", [](PyCommunicator& c) { return c.engine->sequence(); })
      .def("caller",
           [](PyCommunicator& c) {
             Communicator::Caller caller = c.engine->caller();
             size_t thread = caller.thread == std::thread::id()
                                 ? 0
                                 : std::hash<std::thread::id>()(caller.thread);
             return nb::make_tuple(thread, caller.several, caller.blocked);
           })
      .def("num_finished",
           [](PyCommunicator& c) { return c.engine->statistics().collectives.value(); })
      .def("statistics", [](PyCommunicator& c) { return statistics(*c.engine); })
      .def("records", [](PyCommunicator& c) { return records(c.engine->recorder()); })
      .def("history",
           [](PyCommunicator& c, uint64_t first, uint64_t last) {
             return history(c.engine->recorder(), first, last);
           })
      .def("failed", [](PyCommunicator& c) { return c.engine->failure().has_value(); })
      .def("set_verdict_timeout",
           [](PyCommunicator& c, double seconds) { c.engine->set_verdict_timeout(seconds); })
      .def("news_fd", [](PyCommunicator& c) { return c.engine->news_fd(); })
      .def("take_proposal", [](PyCommunicator& c) { return as_tuple(c.engine->take_proposal()); })
      .def("verdict", [](PyCommunicator& c) { return as_tuple(c.engine->failure()); })
      .def("announce",
           [](PyCommunicator& c, int kind, int rank, uint64_t sequence, uint64_t fingerprint,
              std::string text) {
             c.engine->announce(verdict_of(kind, rank, sequence, fingerprint, std::move(text)));
           })
      .def("conclude",
           [](PyCommunicator& c, int kind, int rank, uint64_t sequence, uint64_t fingerprint,
              std::string text) {
             Failure verdict = verdict_of(kind, rank, sequence, fingerprint, std::move(text));
             nb::gil_scoped_release release;
             c.engine->conclude(std::move(verdict));
           })
      .def("gone_ranks", [](PyCommunicator& c) { return gone_ranks(*c.engine); })
      .def("look", [](PyCommunicator& c) { c.engine->look(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("owes", [](PyCommunicator& c) { return c.engine->owes(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("progress", [](PyCommunicator& c) { return progress(*c.engine); })
      .def("abort",
           [](PyCommunicator& c, const std::string& reason) { c.engine->abort(reason); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("close",
           [](PyCommunicator& c, const std::string& last_words) { c.engine->close(last_words); },
           nb::arg("last_words") = "",
           nb::call_guard<nb::gil_scoped_release>());

  module.def("connect_loopback",
             [](const std::vector<PyCommunicator*>& ranks, const std::vector<int>& nodes,
                int num_lanes) {
               std::vector<std::shared_ptr<Communicator>> engines;
               for (PyCommunicator* rank : ranks) engines.push_back(rank->engine);
               connect_loopback(engines, nodes, num_lanes);
             });
}
