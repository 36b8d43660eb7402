#include "bindings/bindings.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace nb = nanobind;

namespace hccl {

namespace {

using LoggedCall = std::tuple<uint64_t, uint64_t, uint64_t>;  // sequence, fingerprint, bytes

// The calls still remembered, oldest first, in the order of `_Call` of observe/flight_recorder.py.
nb::typed<nb::list, nb::typed<nb::tuple, nb::any, nb::ellipsis>> records(Communicator& engine) {
  std::vector<CallRecord> calls;
  {
    nb::gil_scoped_release release;
    calls = engine.recorder().records();
  }
  nb::list result;
  for (const CallRecord& c : calls) {
    result.append(nb::make_tuple(c.id, static_cast<int>(c.kind), static_cast<int>(c.state),
                                 c.rendezvous, c.sequence, c.fingerprint, c.peer, c.bytes_in,
                                 c.bytes_out, c.submitted_ns, c.started_ns, c.ended_ns,
                                 c.waiting.total_ns, c.waiting.until_ns, c.waiting.straggler));
  }
  return result;
}

// Of the collectives first..last that are still remembered.
std::vector<LoggedCall> call_log(Communicator& engine, uint64_t first, uint64_t last) {
  std::vector<LoggedCall> result;
  for (const CallRecord& call : engine.recorder().records()) {
    if (call.kind != RequestKind::collective) continue;
    if (call.sequence < first || call.sequence > last) continue;
    result.emplace_back(call.sequence, call.fingerprint, std::max(call.bytes_in, call.bytes_out));
  }
  return result;
}

// All counters, by device and of stragglers: "calls" (calls, waiting, moving by kind) and "peers"
// (waited for, times last by rank).
AnyDict statistics(Communicator& engine) {
  const Statistics& s = engine.statistics();
  nb::dict result;
  result["collectives"] = s.collectives.value();
  result["rendezvous"] = s.rendezvous.value();
  result["sleeps"] = s.sleeps.value();
  result["doorbells"] = s.doorbells.value();
  result["shm"] = device_statistics(s.shm);
  result["tcp"] = device_statistics(s.tcp);
  result["verbs"] = device_statistics(s.verbs);
  result["provider"] = device_statistics(s.provider);
  nb::list calls, peers;
  for (const CallStatistics& kind : s.calls) {
    calls.append(nb::make_tuple(kind.calls.value(), kind.waiting_ns.value(),
                                kind.moving_ns.value()));
  }
  for (int rank = 0; rank < engine.options().world_size; ++rank) {
    const Stragglers::Peer& peer = engine.stragglers().of(rank);
    peers.append(nb::make_tuple(peer.waited_ns.value(), peer.times_last.value()));
  }
  result["calls"] = calls;
  result["peers"] = peers;
  return result;
}

nb::typed<nb::list, AnyDict> path_statistics(Communicator& engine) {
  nb::list result;
  for (const auto& record : engine.connections().path_statistics()) {
    nb::dict entry;
    entry["peer"] = record->peer;
    entry["lane"] = record->lane;
    entry["path"] = record->name.c_str();
    entry["connected"] = record->connected.value() != 0;
    entry["bytes"] = record->bytes.value();
    entry["messages"] = record->messages.value();
    entry["retries"] = record->retransmits.value();
    entry["stalls"] = record->stalls.value();
    entry["reconnects"] = record->reconnects.value();
    entry["checksum_errors"] = record->checksum_errors.value();
    entry["bytes_per_second"] = record->rate.value();
    result.append(entry);
  }
  return result;
}

}  // namespace

Counts device_statistics(const DeviceStatistics& device) {
  nb::dict result;
  result["messages"] = device.messages.value();
  result["bytes"] = device.bytes.value();
  result["stalls"] = device.stalls.value();
  result["retries"] = device.retries.value();
  return result;
}

void bind_recorder(nb::class_<Communicator>& communicator) {
  communicator.def("records", &records)
      .def("call_log", &call_log)
      .def("statistics", &statistics)
      .def("path_statistics", &path_statistics)
      .def("num_finished", [](Communicator& c) { return c.statistics().collectives.value(); });
}

}  // namespace hccl
