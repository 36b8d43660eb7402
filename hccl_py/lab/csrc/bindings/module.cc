// The C++ of the lab for Python: ranks in virtual time, and the network of emulated nodes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/system_errors.h"
#include "emulation/network.h"
#include "simulation/virtual_time.h"

namespace nb = nanobind;

namespace hccl {

namespace {

using namespace simulation;
using Released = nb::call_guard<nb::gil_scoped_release>;
using Rows = nb::ndarray<const int32_t, nb::ndim<2>, nb::shape<-1, Programs::op_columns>,
                         nb::c_contig, nb::device::cpu>;
using Peers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_simulation(nb::module_& module) {
  nb::enum_<Wiring>(module, "Wiring",
                    "Who shares a wire. Messages on one wire go one after the other.")
      .value("NODE", Wiring::node, "One network card for all ranks of a node.")
      .value("RANK", Wiring::rank, "One wire for each rank.")
      .value("PAIR", Wiring::pair, "One wire for each pair of ranks.");
  nb::enum_<Move>(module, "Move", "How the first group of ranks maps to another one.")
      .value("NONE", Move::none)
      .value("ROTATION", Move::rotation)
      .value("EXCLUSIVE_OR", Move::exclusive_or);
  nb::class_<LinkTimes>(module, "LinkTimes")
      .def(nb::init<double, double, double, double, double, Wiring, int>(), nb::arg("latency_us"),
           nb::arg("message_us"), nb::arg("us_per_mib"), nb::arg("wire_us_per_mib"),
           nb::arg("burst_us"), nb::arg("wiring"), nb::arg("capacity"));
  nb::class_<World>(module, "World")
      .def(nb::init<>())
      .def_rw("node_of", &World::node_of)
      .def_rw("local_rank", &World::local_rank)
      .def_rw("late_us", &World::late_us)
      .def_rw("machine_of", &World::machine_of)
      .def_rw("cores", &World::cores)
      .def_rw("scale_up", &World::scale_up)
      .def_rw("scale_out", &World::scale_out)
      .def_rw("node_links", &World::node_links)
      .def_rw("link_us_per_mib", &World::link_us_per_mib)
      .def_rw("routes", &World::routes)
      .def_rw("reduce_us_per_mib", &World::reduce_us_per_mib)
      .def_rw("result_us_per_mib", &World::result_us_per_mib)
      .def_rw("memory_us_per_mib", &World::memory_us_per_mib);
  nb::class_<Programs>(module, "Programs")
      .def(nb::init<Move, std::vector<std::vector<int>>>())
      .def("add",
           [](Programs& self, const Rows& ops, const Peers& peers) {
             self.add({ops.data(), ops.size()}, {peers.data(), peers.size()});
           })
      .def("match", &Programs::match);
  nb::class_<VirtualTime>(module, "VirtualTime")
      .def(nb::init<World, Programs, std::vector<int>, int, int, int64_t>(), nb::arg("world"),
           nb::arg("programs"), nb::arg("simulated"), nb::arg("num_calls"), nb::arg("num_tiles"),
           nb::arg("exact_messages"))
      .def(
          "run",
          [](VirtualTime& self) {
            return self.run([] {
              nb::gil_scoped_acquire acquired;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
          },
          Released())
      .def("record", &VirtualTime::record)
      .def("happened", &VirtualTime::happened)
      .def("ended_us", &VirtualTime::ended_us)
      .def("num_messages", &VirtualTime::num_messages)
      .def("left_out", [](const VirtualTime& self) {
        const LeftOut& left_out = self.steadiness().left_out();
        return std::tuple(left_out.num_tiles, left_out.us, left_out.error_us);
      });
}

void bind_emulation(nb::module_& module) {
  nb::class_<WireTraffic>(module, "WireTraffic")
      .def_ro("from_node", &WireTraffic::from)
      .def_ro("to_node", &WireTraffic::to)
      .def_ro("leaves", &WireTraffic::leaves)
      .def_ro("num_bytes", &WireTraffic::num_bytes)
      .def_ro("bytes_per_s", &WireTraffic::bytes_per_s);
  nb::class_<EmulatedNetwork>(module, "EmulatedNetwork")
      .def(nb::init<int, double, double, const std::map<EmulatedNetwork::Pair, double>&, double,
                    std::map<EmulatedNetwork::Pair, double>>(),
           nb::arg("num_nodes"), nb::arg("bytes_per_s"), nb::arg("burst_bytes"), nb::arg("links"),
           nb::arg("latency_s"), nb::arg("latencies_s"))
      .def(
          "carry",
          [](EmulatedNetwork& self, int here, int there, int from, int to) {
            self.carry(Descriptor(here), Descriptor(there), from, to);
          },
          nb::arg("here"), nb::arg("there"), nb::arg("from_node"), nb::arg("to_node"))
      .def("cut", &EmulatedNetwork::cut, nb::arg("one"), nb::arg("other"), nb::arg("seconds"),
           Released())
      .def("traffic", &EmulatedNetwork::traffic, Released());
}

}  // namespace

}  // namespace hccl

NB_MODULE(_lab, module) {
  module.doc() = "The C++ of hccl_py.lab.";
  nanobind::register_exception_translator(hccl::raise_system_error);
  hccl::bind_simulation(module);
  hccl::bind_emulation(module);
}
