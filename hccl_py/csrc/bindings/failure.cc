#include "bindings/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace hccl {

namespace {

nb::object exception_type;  // hccl_py.transport._core.CommunicatorFailed

void raise_failure(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const CommunicatorFailed& error) {
    nb::object failure = as_object(error.failure);
    nb::object exception = exception_type(failure);
    exception.attr("failure") = failure;
    PyErr_SetObject(exception_type.ptr(), exception.ptr());
  }
}

}  // namespace

void bind_failure(nb::module_& module) {
  exception_type = nb::steal(PyErr_NewException("hccl_py.transport._core.CommunicatorFailed",
                                                PyExc_RuntimeError, nullptr));
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
  nb::class_<PathTrouble>(module, "PathTrouble")
      .def_ro("rank", &PathTrouble::rank)
      .def_ro("name", &PathTrouble::name)
      .def_ro("up", &PathTrouble::up)
      .def_ro("seconds", &PathTrouble::seconds)
      .def_ro("reason", &PathTrouble::reason);
  nb::class_<EndedPeer>(module, "EndedPeer")
      .def_ro("rank", &EndedPeer::rank)
      .def_ro("cause", &EndedPeer::cause)
      .def_ro("last_sequence", &EndedPeer::last_sequence)
      .def_ro("exit_code", &EndedPeer::exit_code)
      .def_ro("signal", &EndedPeer::signal);
  nb::class_<Failure>(module, "Failure")
      .def_ro("cause", &Failure::cause)
      .def_ro("rank", &Failure::rank)
      .def_ro("call", &Failure::call)
      .def_ro("sequence", &Failure::sequence)
      .def_ro("observed_ns", &Failure::observed_ns)
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
}

nb::object as_object(const FailurePtr& failure) {
  return failure ? nb::cast(*failure, nb::rv_policy::copy) : nb::none();
}

nb::dict progress(Communicator& engine) {
  CallProgress made;
  {
    nb::gil_scoped_release release;
    made = engine.progress_made();
  }
  nb::dict result;
  result["submitted"] = made.submitted;
  result["finished"] = made.finished;
  result["sequence"] = made.sequence;
  result["fingerprint"] = made.fingerprint;
  result["timeout_s"] = made.timeout_s;
  result["activity"] = made.stage.activity;
  result["step"] = made.stage.step;
  result["num_steps"] = made.stage.num_steps;
  result["tile"] = made.stage.tile;
  result["num_tiles"] = made.stage.num_tiles;
  result["bytes_done"] = made.bytes_done;
  result["bytes_total"] = made.bytes_total;
  result["waiting_for"] = made.waiting_for;
  result["num_transfers"] = made.num_transfers;
  return result;
}

}  // namespace hccl
