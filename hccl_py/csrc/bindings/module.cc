// The Python interface of the engine, one-to-one with the headers. No logic lives here. How calls
// become requests stands in calls/. Numbers, not enums, cross this border: DType and ReduceOp as
// in transport/types.py, addresses as int.
#include "bindings/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "base/fork_copies.h"
#include "base/signal_bell.h"
#include "bindings/system_errors.h"
#include "progress/idle.h"
#include "progress/progress_thread.h"
#include "reduce/reduce.h"
#include "verbs/rdma/lane_end.h"

namespace nb = nanobind;
using namespace hccl;

namespace {

using Connections = std::vector<nb::object>;  // each an owned descriptor, or a Stream
using BrokenPaths = std::vector<std::tuple<int, int, int>>;  // peer, index, path: see BrokenPath

std::shared_ptr<Communicator> make_communicator(std::shared_ptr<ProgressThread> progress, int rank,
                                                int world_size, std::vector<int> local_ranks,
                                                int num_channels, int num_slots, size_t slot_bytes,
                                                std::shared_ptr<Arena> arena, bool checksum,
                                                double path_timeout_s) {
  CommunicatorOptions options{.rank = rank,
                              .world_size = world_size,
                              .num_channels = num_channels,
                              .num_slots = num_slots,
                              .slot_bytes = slot_bytes,
                              .local_ranks = std::move(local_ranks),
                              .arena = std::move(arena),
                              .checksum = checksum,
                              .path_timeout_s = path_timeout_s};
  return Communicator::create(options, std::move(progress));
}

void add_shm_peer(Communicator& engine, int peer, int segment_fd, int doorbell_fd, int arena_fd,
                  int control_fd) {
  Descriptor doorbell(doorbell_fd), memory(arena_fd), control(control_fd);
  auto theirs = Segment::open(Descriptor(segment_fd), engine.segment()->shape());
  std::shared_ptr<ArenaWindow> window;
  try {
    if (engine.options().arena) window = engine.options().arena->open_peer(std::move(memory));
  } catch (const std::system_error&) {
    // A peer whose registered memory cannot be mapped is still usable.
  }
  engine.add_shm_peer(peer, std::move(theirs), std::move(doorbell), std::move(control),
                      std::move(window));
}

StreamsByPath streams_of(const Connections& connections) {
  StreamsByPath streams;
  for (const nb::object& connection : connections) streams.push_back(stream_of(connection));
  return streams;
}

void add_tcp_peer(Communicator& engine, int peer, const std::vector<Connections>& lanes,
                  const Connections& controls, std::vector<std::string> names) {
  TcpConnections connections;
  for (const Connections& paths : lanes) connections.lanes.push_back(streams_of(paths));
  connections.controls = streams_of(controls);
  connections.names = std::move(names);
  engine.add_tcp_peer(peer, std::move(connections));
}

BrokenPaths plain(const std::vector<BrokenPath>& paths) {
  BrokenPaths result;
  for (const BrokenPath& path : paths) result.emplace_back(path.peer, path.index, path.path);
  return result;
}

void bind_communicator(nb::class_<Communicator>& communicator) {
  communicator
      .def_static("create", &make_communicator, nb::arg("progress"), nb::arg("rank"),
                  nb::arg("world_size"), nb::arg("local_ranks"), nb::arg("num_channels"),
                  nb::arg("num_slots"), nb::arg("slot_bytes"), nb::arg("arena").none(),
                  nb::arg("checksum") = false,
                  nb::arg("path_timeout_s") = CommunicatorOptions().path_timeout_s)
      .def("segment_fd", [](Communicator& c) { return c.segment()->fd(); })
      .def("doorbell_fd", &Communicator::doorbell_fd)
      .def("set_checks", &Communicator::set_checks)
      .def("start_profile", &Communicator::start_profile)
      .def("set_ranks_on_host", &Communicator::set_ranks_on_host)
      .def_prop_rw("wait", &Communicator::way_to_wait, &Communicator::set_wait)
      .def("assume_cores", &Communicator::assume_cores, nb::arg("is_far"), nb::arg("is_crowded"))
      .def("add_shm_peer", &add_shm_peer)
      .def("add_tcp_peer", &add_tcp_peer)
      .def("add_lanes", &add_python_lanes)
      .def("add_verbs_peer", &add_verbs_peer, Released())
      .def("add_rdma_peer", &add_rdma_peer, Released())
      .def("add_memory",
           [](Communicator& communicator, const std::shared_ptr<RdmaRegistrations>& memory) {
             communicator.add_memory(memory);
           })
      .def(
          "take_device_changes",
          [](Communicator& c) { return c.connections().take_device_changes(); }, Released())
      .def("repair_fd", [](Communicator& c) { return c.connections().repair_fd(); })
      .def(
          "take_broken", [](Communicator& c) { return plain(c.take_broken()); }, Released())
      .def(
          "take_wanted", [](Communicator& c) { return plain(c.connections().take_wanted()); },
          Released())
      .def("note_refusal", &Communicator::note_refusal, Released())
      .def("note_unreachable", &Communicator::note_unreachable, Released())
      .def("replace_connection",
           [](Communicator& c, int peer, int index, int path, nb::handle connection) {
             std::shared_ptr<Stream> stream = stream_of(connection);
             nb::gil_scoped_release release;
             c.replace_connection({peer, index, path}, std::move(stream));
           })
      .def("sequence", &Communicator::sequence)
      .def("caller", &Communicator::caller)
      .def("drives", &Communicator::drives)
      .def("poll", &Communicator::poll, Released())
      .def("has_undelivered", &Communicator::has_undelivered, Released())
      .def(
          "finish_unawaited",
          [](Communicator& c, double timeout_s) {
            return c.finish_unawaited(Clock::now() + duration_of(timeout_s), check_signals);
          },
          Released())
      .def(
          "close",
          [](Communicator& c, const std::string& error, bool goes_on) {
            c.close(error, check_signals, goes_on);
          },
          nb::arg("error") = "", nb::arg("goes_on") = false, Released());
}

// The address of a C-contiguous buffer, writable if required. Throws ValueError or BufferError for
// others.
uint64_t address_of(nb::handle buffer, bool writable) {
  Py_buffer view;
  int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(buffer.ptr(), &view, flags) != 0) throw nb::python_error();
  uint64_t address = reinterpret_cast<uint64_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The C++ data path of hccl-py.";
  nb::set_leak_warnings(false);  // ranks may leave with works in flight
  nb::register_exception_translator(raise_system_error);

  nb::class_<ProgressThread>(module, "ProgressThread")
      .def(nb::init<>())
      .def("stop", &ProgressThread::stop, Released());
  bind_memory(module);
  bind_overlap(module);
  bind_python_lanes(module);
  bind_verbs(module);

  nb::enum_<Wait>(module, "Wait")
      .value("SPIN", Wait::spin)
      .value("BALANCED", Wait::balanced)
      .value("IDLE", Wait::idle);
  nb::class_<Communicator> communicator(module, "Communicator");
  bind_reports(module, communicator);
  bind_calls(module, communicator);
  bind_window(module, communicator);
  bind_plan_cache(module);
  bind_graph(module);
  bind_torch_calls(module, bind_call_entry(module));
  bind_communicator(communicator);
  bind_c_entry(module);
  bind_xla_calls(module);

  module.def("address_of", &address_of);
  // For a forked child: the parent's objects must not say goodbye in its name.
  module.def("leak", [](nb::object object) { object.inc_ref(); });
  module.def(
      "multiply",
      [](int dtype, uint64_t to, uint64_t from, size_t count, double factor) {
        return multiply(static_cast<DType>(dtype), pointer(to), pointer(from), count, factor);
      },
      Released());
  module.def("give_up_in_children", &give_up_in_children);
  module.def("keep_in_children", &keep_in_children);
  module.def("reduce_instruction_set", &reduce_instruction_set);
  module.def(
      "reduce_exactly",
      [](int from_type, int to_type, uint64_t to, const std::vector<uint64_t>& sources,
         size_t count, size_t divisor) {
        std::vector<const std::byte*> from;
        for (uint64_t source : sources) from.push_back(pointer(source));
        return reduce_exactly(static_cast<DType>(from_type), static_cast<DType>(to_type),
                              pointer(to), from, count, divisor);
      },
      Released());
  module.def(
      "split_sum",
      [](int dtype, uint64_t sum, uint64_t addend, size_t count) {
        return split_sum(static_cast<DType>(dtype), pointer(sum), pointer(addend), count);
      },
      Released());
  module.def("reduce_supported", [](int dtype, int op) {
    return reduce_supported(static_cast<DType>(dtype), static_cast<ReduceOp>(op));
  });
  module.def("usable_cores", &usable_cores);
  module.def("ring_on_signal", &ring_on_signal);
  module.def("silence_signal_bell", &silence_signal_bell);
  module.def("forget_signal_bell", &forget_signal_bell);
}
