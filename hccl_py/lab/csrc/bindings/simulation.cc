#include "simulation/virtual_time.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <vector>

#include "bindings/lab.h"

namespace nb = nanobind;

namespace hccl {

namespace {

using namespace simulation;
using Rows = nb::ndarray<const int32_t, nb::ndim<2>, nb::shape<-1, Programs::op_columns>,
                         nb::c_contig, nb::device::cpu>;
using Peers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Latency, message, MiB, MiB of the wire, burst, wiring, capacity.
using LinkRow = std::tuple<double, double, double, double, double, int, int>;

Link link_of(const LinkRow& row) {
  auto [latency_us, message_us, us_per_mib, wire_us_per_mib, burst_us, wiring, capacity] = row;
  return {latency_us,      message_us, us_per_mib,
          wire_us_per_mib, burst_us,   static_cast<Wiring>(wiring),
          capacity};
}

}  // namespace

void bind_simulation(nb::module_& module) {
  nb::class_<World>(module, "World")
      .def(nb::init<>())
      .def_rw("node_of", &World::node_of)
      .def_rw("local_rank", &World::local_rank)
      .def_rw("late_us", &World::late_us)
      .def_rw("machine_of", &World::machine_of)
      .def_rw("cores", &World::cores)
      .def_rw("reduce_us_per_mib", &World::reduce_us_per_mib)
      .def_rw("result_us_per_mib", &World::result_us_per_mib)
      .def_rw("memory_us_per_mib", &World::memory_us_per_mib)
      .def("set_links",
           [](World& world, const LinkRow& up, const LinkRow& out) {
             world.scale_up = link_of(up);
             world.scale_out = link_of(out);
           })
      .def("add_node_link", [](World& world, int from, int to, double us_per_mib) {
        world.node_links.push_back({from, to, us_per_mib});
      });
  nb::class_<Programs>(module, "Programs")
      .def("__init__",
           [](Programs* self, int move, std::vector<std::vector<int>> groups) {
             new (self) Programs(static_cast<Move>(move), std::move(groups));
           })
      .def("add",
           [](Programs& self, const Rows& ops, const Peers& peers) {
             self.add({ops.data(), ops.size()}, {peers.data(), peers.size()});
           })
      .def("match", [](Programs& self) -> std::optional<std::tuple<int, int, int>> {
        auto found = self.match();
        if (!found) return std::nullopt;
        return std::tuple(found->rank, found->op, found->peer);
      });
  nb::class_<VirtualTime>(module, "VirtualTime")
      .def("__init__",
           [](VirtualTime* self, const World& world, const Programs& programs,
              std::vector<int> simulated, int num_calls, int num_tiles, int64_t patience_messages) {
             new (self) VirtualTime(world, programs, std::move(simulated),
                                    {num_calls, num_tiles, patience_messages});
           })
      .def(
          "run",
          [](VirtualTime& self) -> std::optional<std::tuple<int, int, int>> {
            auto stuck = self.run([] {
              nb::gil_scoped_acquire acquired;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
            if (!stuck) return std::nullopt;
            return std::tuple(stuck->rank, stuck->op, stuck->num_others);
          },
          Released())
      .def("ended_us", &VirtualTime::ended_us)
      .def("num_messages", &VirtualTime::num_messages)
      .def("left_out", [](const VirtualTime& self) {
        const LeftOut& left_out = self.steadiness().left_out();
        return std::tuple(left_out.num_tiles, left_out.us, left_out.error_us);
      });
}

}  // namespace hccl
