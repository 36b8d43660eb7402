#include "bindings/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

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
    PyErr_SetObject(exception_type.ptr(), nb::cast(copy_of(error.failure)).ptr());
  }
}

}  // namespace

void bind_failure(nb::module_& module, nb::class_<Communicator>& communicator) {
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
      .def_ro("num_transfers", &CallProgress::num_transfers);
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
      .def("abort",
           [](Communicator& c, std::string reason, Cause cause) { c.abort(cause, std::move(reason)); },
           nb::arg("reason"), nb::arg("cause") = Cause::aborted, Released());
}

}  // namespace hccl
