#include "bindings/failure.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

namespace nb = nanobind;

namespace hccl {

namespace {

nb::object exception_type;  // hccl_py.transport._core.CommunicatorFailed

nb::tuple as_tuple(const Failure& f) {
  return nb::make_tuple(static_cast<int>(f.kind), f.rank, f.reporter, f.expected, f.received,
                        f.text, f.sequence, f.settled);
}

void raise_failure(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const CommunicatorFailed& error) {
    PyErr_SetObject(exception_type.ptr(), as_tuple(error.failure).ptr());
  }
}

}  // namespace

void bind_failure(nb::module_& module) {
  exception_type = nb::steal(PyErr_NewException("hccl_py.transport._core.CommunicatorFailed",
                                                PyExc_RuntimeError, nullptr));
  module.attr("CommunicatorFailed") = exception_type;
  nb::register_exception_translator(raise_failure);
}

nb::object as_tuple(const std::optional<Failure>& failure) {
  return failure ? nb::object(as_tuple(*failure)) : nb::none();
}

Failure verdict_of(int kind, int rank, uint64_t sequence, uint64_t fingerprint, std::string text) {
  if (kind <= static_cast<int>(FailureKind::none) ||
      kind > static_cast<int>(FailureKind::internal)) {
    throw std::invalid_argument("no such kind of failure");
  }
  Failure verdict;
  verdict.kind = static_cast<FailureKind>(kind);
  verdict.rank = rank;
  verdict.sequence = sequence;
  verdict.expected = fingerprint;
  verdict.text = std::move(text);
  return verdict;
}

nb::list gone_ranks(const Communicator& engine) {
  nb::list result;
  for (const GoneRank& gone : engine.gone_ranks()) {
    result.append(nb::make_tuple(gone.rank, gone.left, gone.last_sequence));
  }
  return result;
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
  result["position"] = made.position;
  result["bytes_done"] = made.bytes_done;
  result["bytes_total"] = made.bytes_total;
  result["waiting_for"] = made.waiting_for;
  result["num_transfers"] = made.num_transfers;
  return result;
}

}  // namespace hccl
