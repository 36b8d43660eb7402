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

// Keeps both objects alive.
struct PyPerftestEnd {
  std::shared_ptr<QueuePairFace> pair;
  std::shared_ptr<CompletionQueue> queue;
  PerftestEnd end;

  PyPerftestEnd(std::shared_ptr<QueuePairFace> its_pair, std::shared_ptr<CompletionQueue> its_queue,
                Memory local, Memory remote)
      : pair(std::move(its_pair)),
        queue(std::move(its_queue)),
        end{*pair,
            *queue,
            std::get<0>(local),
            std::get<1>(local),
            std::get<0>(remote),
            std::get<1>(remote),
            0,
            check_signals} {}
};

template <class Pair>
void make_end(PyPerftestEnd* end, std::shared_ptr<Pair> pair,
              std::shared_ptr<CompletionQueue> queue, Memory local, Memory remote) {
  new (end) PyPerftestEnd(std::move(pair), std::move(queue), local, remote);
}

std::byte* pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

void bind_perftest(nb::module_& module) {
  using End = PyPerftestEnd;
  nb::class_<End>(module, "PerftestEnd")
      .def("__init__", &make_end<QueuePair>)
      .def("__init__", &make_end<RdmaQueuePair>)
      .def("set_size", [](End& e, size_t size) { e.end.size = size; })
      .def(
          "send_ping_pong",
          [](End& e, size_t iterations, bool starts) {
            return send_ping_pong(e.end, iterations, starts);
          },
          Released())
      .def(
          "write_ping_pong",
          [](End& e, size_t iterations, bool starts) {
            return write_ping_pong(e.end, iterations, starts);
          },
          Released())
      .def(
          "read_one_by_one",
          [](End& e, size_t iterations) { return read_one_by_one(e.end, iterations); }, Released())
      .def(
          "stream",
          [](End& e, int opcode, size_t iterations, size_t window) {
            return stream(e.end, static_cast<Opcode>(opcode), iterations, window);
          },
          Released())
      .def(
          "sink", [](End& e, size_t iterations, size_t window) { sink(e.end, iterations, window); },
          Released());
  module.def(
      "socket_ping_pong",
      [](int fd, uint64_t buffer, size_t size, size_t iterations, bool starts) {
        return socket_ping_pong(fd, pointer(buffer), size, iterations, starts);
      },
      Released());
  module.def(
      "socket_stream",
      [](int fd, uint64_t buffer, size_t size, size_t iterations, bool sends) {
        return socket_stream(fd, pointer(buffer), size, iterations, sends);
      },
      Released());
  module.def(
      "copy_times",
      [](uint64_t buffer, size_t size, size_t iterations) {
        return copy_times(pointer(buffer), size, iterations);
      },
      Released());
  module.def("core_to_core_ns", &core_to_core_ns, Released());
  module.def("compute_ns", &compute_ns, Released());
}

}  // namespace hccl
