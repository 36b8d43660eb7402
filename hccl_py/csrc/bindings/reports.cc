// The engine's reports to Python: failures, progress, the flight recorder and the counters.
#include "bindings/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace nb = nanobind;

namespace hccl {

namespace {

nb::object exception_type;  // CommunicatorFailed of this module; its argument is a Failure

std::optional<Failure> copy_of(const FailurePtr& failure) {
  return failure ? std::optional(*failure) : std::nullopt;
}

void raise_failure(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const CommunicatorFailed& error) {
    PyErr_SetObject(exception_type.ptr(), python_exception(error).ptr());
  }
}

using LoggedCall = std::tuple<uint64_t, uint64_t, uint64_t>;  // sequence, fingerprint, bytes

// The recorded calls, oldest first, in the order of `Call` in observe/flight_recorder.py.
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

// The recorded ones of collectives first..last.
std::vector<LoggedCall> call_log(Communicator& engine, uint64_t first, uint64_t last) {
  std::vector<LoggedCall> result;
  for (const CallRecord& call : engine.recorder().records()) {
    if (call.kind != RequestKind::collective) continue;
    if (call.sequence < first || call.sequence > last) continue;
    result.emplace_back(call.sequence, call.fingerprint, std::max(call.bytes_in, call.bytes_out));
  }
  return result;
}

// All counters, by device and of stragglers: "calls" (calls, waiting, moving, elements by kind) and
// "peers" (waited for, times last by rank).
AnyDict statistics(Communicator& engine) {
  const Statistics& s = engine.statistics();
  nb::dict result;
  result["collectives"] = s.collectives.value();
  result["rendezvous"] = s.rendezvous.value();
  result["single_copies"] = s.single_copies.value();
  result["slot_copies"] = s.verbs.copies.value();
  result["remote_reads"] = s.verbs.reads.value();
  result["sleeps"] = s.sleeps.value();
  result["doorbells"] = s.doorbells.value();
  result["shm"] = device_statistics(s.shm);
  result["tcp"] = device_statistics(s.tcp);
  result["verbs"] = device_statistics(s.verbs);
  result["provider"] = device_statistics(s.provider);
  nb::list calls, peers;
  for (const CallStatistics& kind : s.calls) {
    calls.append(nb::make_tuple(kind.calls.value(), kind.waiting_ns.value(), kind.moving_ns.value(),
                                kind.elements.value()));
  }
  for (int rank = 0; rank < engine.options().world_size; ++rank) {
    const Stragglers::Peer& peer = engine.stragglers().of(rank);
    peers.append(nb::make_tuple(peer.waited_ns.value(), peer.times_last.value()));
  }
  result["calls"] = calls;
  result["peers"] = peers;
  return result;
}

// Nanoseconds of copying, reducing, and sending and receiving over a wire, in the calls that
// Profile counts.
nb::typed<nb::tuple, uint64_t, uint64_t, uint64_t> profile(Communicator& engine) {
  const Profile& p = engine.statistics().profile;
  return nb::make_tuple(p.copy_ns.value(), p.reduce_ns.value(), p.wire_ns.value());
}

// Of all compressed calls: their number, bytes sent before and after encoding, nanoseconds of
// coding.
nb::typed<nb::tuple, uint64_t, uint64_t, uint64_t, uint64_t> compression(Communicator& engine) {
  const CompressionStatistics& c = engine.statistics().compression;
  return nb::make_tuple(c.calls.value(), c.raw_bytes.value(), c.sent_bytes.value(),
                        c.coding_ns.value());
}

nb::typed<nb::list, AnyDict> path_statistics(Communicator& engine) {
  nb::list result;
  for (const auto& record : engine.connections().path_statistics()) {
    nb::dict entry;
    entry["peer"] = record->peer;
    entry["lane"] = record->lane;
    entry["path"] = record->name.c_str();
    uint64_t connections = record->connections.value();
    entry["connected"] = nb::none();  // until a message needs it
    if (connections > 0) entry["connected"] = record->connected.value() != 0;
    entry["bytes"] = record->bytes.value();
    entry["messages"] = record->messages.value();
    entry["retries"] = record->retransmits.value();
    entry["stalls"] = record->stalls.value();
    entry["reconnects"] = connections > 0 ? connections - 1 : 0;
    entry["checksum_errors"] = record->checksum_errors.value();
    entry["bytes_per_second"] = record->rate.value();
    result.append(entry);
  }
  return result;
}

}  // namespace

nb::object python_exception(const CommunicatorFailed& error) {
  return exception_type(copy_of(error.failure));
}

void bind_reports(nb::module_& module, nb::class_<Communicator>& communicator) {
  nb::str name(module.attr("__name__") + nb::str(".CommunicatorFailed"));
  exception_type = nb::steal(PyErr_NewException(name.c_str(), PyExc_RuntimeError, nullptr));
  module.attr("CommunicatorFailed") = exception_type;
  nb::register_exception_translator(raise_failure);

  nb::enum_<Cause>(module, "Cause", nb::is_arithmetic())
      .value("DIED", Cause::died)
      .value("LOST", Cause::lost)
      .value("UNREACHABLE", Cause::unreachable)
      .value("LEFT", Cause::left)
      .value("TIMED_OUT", Cause::timed_out)
      .value("MISMATCH", Cause::mismatch)
      .value("UNCAUGHT_EXCEPTION", Cause::uncaught_exception)
      .value("INTERRUPTED", Cause::interrupted)
      .value("ABORTED", Cause::aborted)
      .value("CLOSED", Cause::closed)
      .value("INTERNAL_ERROR", Cause::internal_error);
  nb::class_<Stage>(module, "Stage")
      .def_ro("activity", &Stage::activity)
      .def_ro("step", &Stage::step)
      .def_ro("num_steps", &Stage::num_steps)
      .def_ro("tile", &Stage::tile)
      .def_ro("num_tiles", &Stage::num_tiles);
  nb::class_<CallProgress>(module, "CallProgress")
      .def_ro("submitted", &CallProgress::submitted)
      .def_ro("finished", &CallProgress::finished)
      .def_ro("sequence", &CallProgress::sequence)
      .def_ro("fingerprint", &CallProgress::fingerprint)
      .def_ro("timeout_s", &CallProgress::timeout_s)
      .def_ro("stage", &CallProgress::stage)
      .def_ro("bytes_done", &CallProgress::bytes_done)
      .def_ro("bytes_total", &CallProgress::bytes_total)
      .def_ro("waiting_for", &CallProgress::waiting_for)
      .def_ro("num_transfers", &CallProgress::num_transfers)
      .def_ro("out_of_reach", &CallProgress::out_of_reach)
      .def_ro("unlinked", &CallProgress::unlinked);
  nb::class_<PathTrouble>(module, "PathTrouble")
      .def_ro("rank", &PathTrouble::rank)
      .def_ro("name", &PathTrouble::name)
      .def_ro("up", &PathTrouble::up)
      .def_ro("seconds", &PathTrouble::seconds)
      .def_ro("reason", &PathTrouble::reason);
  nb::class_<Failure>(module, "Failure")
      .def_ro("cause", &Failure::cause)
      .def_ro("rank", &Failure::rank)
      .def_ro("call", &Failure::call)
      .def_ro("sequence", &Failure::sequence)
      .def_ro("their_call", &Failure::their_call)
      .def_ro("sent_bytes", &Failure::sent_bytes)
      .def_ro("expected_bytes", &Failure::expected_bytes)
      .def_ro("sends", &Failure::sends)
      .def_ro("stage", &Failure::stage)
      .def_ro("waiting_for", &Failure::waiting_for)
      .def_ro("half_done", &Failure::half_done)
      .def_ro("paths", &Failure::paths)
      .def_ro("process_lives", &Failure::process_lives)
      .def_ro("exit_code", &Failure::exit_code)
      .def_ro("signal", &Failure::signal)
      .def_ro("error", &Failure::error)
      .def_ro("last_sequence", &Failure::last_sequence)
      .def_ro("goes_on", &Failure::goes_on)
      .def_ro("reason", &Failure::reason)
      .def_prop_ro("diagnosis", [](const Failure& failure) {
        return nb::bytes(failure.diagnosis.data(), failure.diagnosis.size());
      });

  communicator.def("failed", [](Communicator& c) { return c.failures().has_ended(); })
      .def("set_diagnosis_timeout",
           [](Communicator& c, double seconds) { c.failures().set_diagnosis_timeout(seconds); })
      .def("report_fd", [](Communicator& c) { return c.failures().event_fd(); })
      .def("take_report", [](Communicator& c) { return copy_of(c.failures().take_report()); })
      .def("failure", [](Communicator& c) { return copy_of(c.failures().failure()); })
      .def("adopt_diagnosis",
           [](Communicator& c, Cause cause, nb::bytes diagnosis) {
             c.failures().adopt(cause, {diagnosis.c_str(), diagnosis.size()});
           })
      .def("apply_diagnosis", &Communicator::apply_diagnosis, Released())
      .def("ended_peers", [](Communicator& c) { return c.connections().ended_peers(); })
      .def("progress", &Communicator::progress_made, Released())
      .def(
          "abort",
          [](Communicator& c, std::string reason, Cause cause) {
            c.abort(cause, std::move(reason));
          },
          nb::arg("reason"), nb::arg("cause") = Cause::aborted, Released())
      .def("records", &records)
      .def("call_log", &call_log)
      .def("statistics", &statistics)
      .def("path_statistics", &path_statistics)
      .def("compression", &compression)
      .def("profile", &profile)
      .def("num_finished", [](Communicator& c) { return c.statistics().collectives.value(); });
}

Counts device_statistics(const DeviceStatistics& device) {
  nb::dict result;
  result["messages"] = device.messages.value();
  result["bytes"] = device.bytes.value();
  result["stalls"] = device.stalls.value();
  result["retries"] = device.retries.value();
  return result;
}

}  // namespace hccl
