// The loops of hccl-perftest for Python; the GIL is released while they run.
#include "perftest/bindings.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "perftest/loops.h"
#include "verbs/rdma/queue_pair.h"
#include "verbs/software/queue_pair.h"

namespace nb = nanobind;

namespace hccl {

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

void check_signals() {
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

using Memory = std::tuple<uint64_t, uint32_t>;  // address and key

template <class Pair>
void make_end(PerftestEnd* end, std::shared_ptr<Pair> pair, std::shared_ptr<CompletionQueue> queue,
              Memory local, Memory remote) {
  auto [address, lkey] = local;
  auto [remote_address, rkey] = remote;
  new (end) PerftestEnd{std::move(pair), std::move(queue), address, lkey, remote_address, rkey, 0,
                        check_signals};
}

double stream_of(PerftestEnd& end, int opcode, size_t iterations, size_t window) {
  return stream(end, static_cast<Opcode>(opcode), iterations, window);
}

}  // namespace

void bind_perftest(nb::module_& module) {
  nb::class_<PerftestEnd>(module, "PerftestEnd")
      .def("__init__", &make_end<QueuePair>)
      .def("__init__", &make_end<RdmaQueuePair>)
      .def_rw("size", &PerftestEnd::size)
      .def("send_ping_pong", &send_ping_pong, Released())
      .def("write_ping_pong", &write_ping_pong, Released())
      .def("read_one_by_one", &read_one_by_one, Released())
      .def("stream", &stream_of, Released())
      .def("sink", &sink, Released());
  module.def("socket_ping_pong", &socket_ping_pong, Released());
  module.def("socket_stream", &socket_stream, Released());
  module.def("copy_times", &copy_times, Released());
  module.def("core_to_core_ns", &core_to_core_ns, Released());
  module.def("compute_ns", &compute_ns, Released());
}

}  // namespace hccl
