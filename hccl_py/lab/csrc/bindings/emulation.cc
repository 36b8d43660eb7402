#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <tuple>
#include <vector>

#include "bindings/lab.h"
#include "emulation/network.h"

namespace nb = nanobind;

namespace hccl {

namespace {

using Speed = std::tuple<double, double>;  // bytes per second, burst in bytes
using Pair = EmulatedNetwork::Pair;
// From, to (-1: a card), whether it is the sending direction, bytes, bytes per second.
using Traffic = std::tuple<int, int, bool, uint64_t, double>;

LinkSpeed speed_of(const Speed& speed) { return {std::get<0>(speed), std::get<1>(speed)}; }

}  // namespace

void bind_emulation(nb::module_& module) {
  nb::class_<EmulatedNetwork>(module, "EmulatedNetwork")
      .def(
          "__init__",
          [](EmulatedNetwork* self, const std::vector<Speed>& cards,
             const std::map<Pair, Speed>& links, double latency_s,
             const std::map<Pair, double>& latencies_s) {
            std::vector<LinkSpeed> of_cards;
            for (const Speed& speed : cards) of_cards.push_back(speed_of(speed));
            std::map<Pair, LinkSpeed> of_links;
            for (const auto& [nodes, speed] : links) of_links[nodes] = speed_of(speed);
            new (self) EmulatedNetwork(of_cards, of_links, latency_s, latencies_s);
          },
          nb::arg("cards"), nb::arg("links"), nb::arg("latency_s"), nb::arg("latencies_s"))
      .def(
          "carry",
          [](EmulatedNetwork& self, int here, int there, int from, int to) {
            self.carry(Descriptor(here), Descriptor(there), from, to);
          },
          nb::arg("here"), nb::arg("there"), nb::arg("from_node"), nb::arg("to_node"))
      .def("cut", &EmulatedNetwork::cut, nb::arg("one"), nb::arg("other"), nb::arg("seconds"),
           Released())
      .def("traffic", [](EmulatedNetwork& self) {
        std::vector<WireTraffic> counted;
        {
          nb::gil_scoped_release released;
          counted = self.traffic();
        }
        std::vector<Traffic> all;
        for (const WireTraffic& one : counted) {
          all.emplace_back(one.from, one.to, one.leaves, one.num_bytes, one.bytes_per_s);
        }
        return all;
      });
}

}  // namespace hccl
