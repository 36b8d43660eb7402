#include "bindings/bindings.h"

#include <algorithm>

#include "base/signal_bell.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// Adds the keys "calls" (calls, waiting, moving by kind) and "peers" (waited for, times last by rank).
void add_lateness(nb::dict& statistics, const Communicator& engine) {
  nb::list calls, peers;
  for (const CallStatistics& kind : engine.statistics().calls) {
    calls.append(nb::make_tuple(kind.calls.value(), kind.waiting_ns.value(),
                                kind.moving_ns.value()));
  }
  for (int rank = 0; rank < engine.world_size(); ++rank) {
    const Lateness::Peer& peer = engine.lateness().of(rank);
    peers.append(nb::make_tuple(peer.waited_ns.value(), peer.times_last.value()));
  }
  statistics["calls"] = calls;
  statistics["peers"] = peers;
}

}  // namespace

nb::dict device_statistics(const DeviceStatistics& device) {
  nb::dict result;
  result["messages"] = device.messages.value();
  result["bytes"] = device.bytes.value();
  result["stalls"] = device.stalls.value();
  result["retries"] = device.retries.value();
  return result;
}

nb::list records(const Recorder& recorder) {
  std::vector<CallRecord> calls;
  {
    nb::gil_scoped_release release;
    calls = recorder.records();
  }
  nb::list result;
  for (const CallRecord& c : calls) {
    result.append(nb::make_tuple(c.id, static_cast<int>(c.kind), static_cast<int>(c.state),
                                 c.rendezvous, c.sequence, c.fingerprint, c.peer, c.bytes_in,
                                 c.bytes_out, c.submitted_ns, c.started_ns, c.ended_ns, c.late_ns,
                                 c.arrived_ns, c.last_rank));
  }
  return result;
}

nb::list call_log(const Recorder& recorder, uint64_t first, uint64_t last) {
  nb::list result;
  for (const CallRecord& call : recorder.records()) {
    if (call.kind != RequestKind::collective) continue;
    if (call.sequence < first || call.sequence > last) continue;
    result.append(nb::make_tuple(call.sequence, call.fingerprint,
                                 std::max(call.bytes_in, call.bytes_out)));
  }
  return result;
}

nb::dict statistics(const Communicator& engine) {
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
  add_lateness(result, engine);
  return result;
}

void bind_signal_bell(nb::module_& module) {
  module.def("ring_on_signal", &ring_on_signal);
  module.def("silence_signal_bell", &silence_signal_bell);
  module.def("forget_signal_bell", &forget_signal_bell);
}

}  // namespace hccl
