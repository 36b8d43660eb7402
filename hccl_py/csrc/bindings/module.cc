// The Python face of the engine, one-to-one with the headers. No logic lives here. How calls become
// requests stands in bindings_calls.cc.
#include "bindings/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "perftest/bindings.h"
#include "bindings/provider.h"
#include "engine/communicator.h"
#include "progress/idle.h"
#include "progress/progress_thread.h"
#include "reduce/reduce.h"
#include "verbs/device.h"

namespace nb = nanobind;
using namespace hccl;

namespace {

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
    uint64_t address = reinterpret_cast<uint64_t>(view.buf);
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
             [](int dtype, uint64_t to, uint64_t from, size_t count, double factor) {
               return multiply(static_cast<DType>(dtype), reinterpret_cast<std::byte*>(to),
                               reinterpret_cast<std::byte*>(from), count, factor);
             },
             nb::call_guard<nb::gil_scoped_release>());

  bind_arena(module);
  bind_dlpack(module);
  bind_provider();
  bind_signal_bell(module);
  bind_stream(module);
  bind_verbs(module);
  bind_perftest(module);

  nb::class_<ProgressThread>(module, "ProgressThread")
      .def(nb::init<>())
      .def("stop", &ProgressThread::stop, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<PyCommunicator> communicator(module, "Communicator");
  bind_calls(module, communicator);
  communicator
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
      .def("add_verbs_peer",
           [](PyCommunicator& c, const std::shared_ptr<VerbsDevice>& device, int peer,
              const std::vector<int>& lane_fds, int control_fd) {
             nb::gil_scoped_release release;
             add_verbs_peer(*c.engine, device, peer, lane_fds, control_fd);
           })
      .def("repair_fd", [](PyCommunicator& c) { return c.engine->repair_fd(); })
      .def("take_broken",
           [](PyCommunicator& c) {
             std::vector<BrokenPath> broken;
             {
               nb::gil_scoped_release release;
               broken = c.engine->take_broken();
             }
             nb::list result;
             for (const BrokenPath& b : broken) result.append(nb::make_tuple(b.peer, b.index, b.path));
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
      .def("sequence", [](PyCommunicator& c) { return c.engine->sequence(); })
      .def("caller",
           [](PyCommunicator& c) {
             Caller caller = c.engine->caller();
             size_t thread = caller.thread == std::thread::id()
                                 ? 0
                                 : std::hash<std::thread::id>()(caller.thread);
             return nb::make_tuple(thread, caller.several, caller.blocked);
           })
      .def("num_finished",
           [](PyCommunicator& c) { return c.engine->statistics().collectives.value(); })
      .def("statistics", [](PyCommunicator& c) { return statistics(*c.engine); })
      .def("records", [](PyCommunicator& c) { return records(c.engine->recorder()); })
      .def("call_log",
           [](PyCommunicator& c, uint64_t first, uint64_t last) {
             return call_log(c.engine->recorder(), first, last);
           })
      .def("failed", [](PyCommunicator& c) { return c.engine->failure() != nullptr; })
      .def("set_diagnosis_timeout",
           [](PyCommunicator& c, double seconds) { c.engine->set_diagnosis_timeout(seconds); })
      .def("report_fd", [](PyCommunicator& c) { return c.engine->report_fd(); })
      .def("take_report", [](PyCommunicator& c) { return as_object(c.engine->take_report()); })
      .def("failure", [](PyCommunicator& c) { return as_object(c.engine->failure()); })
      .def("adopt_diagnosis",
           [](PyCommunicator& c, Cause cause, nb::bytes diagnosis) {
             c.engine->adopt_diagnosis(cause, {diagnosis.c_str(), diagnosis.size()});
           })
      .def("apply_diagnosis", [](PyCommunicator& c) { c.engine->apply_diagnosis(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("ended_peers", [](PyCommunicator& c) { return c.engine->ended_peers(); })
      .def("poll", [](PyCommunicator& c) { c.engine->poll(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("has_undelivered", [](PyCommunicator& c) { return c.engine->has_undelivered(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("progress", [](PyCommunicator& c) { return progress(*c.engine); })
      .def("abort",
           [](PyCommunicator& c, const std::string& reason, Cause cause) {
             c.engine->abort(reason, cause);
           },
           nb::arg("reason"), nb::arg("cause") = Cause::aborted,
           nb::call_guard<nb::gil_scoped_release>())
      .def("close",
           [](PyCommunicator& c, const std::string& error) { c.engine->close(error); },
           nb::arg("error") = "",
           nb::call_guard<nb::gil_scoped_release>());
}
