// Failures, verdicts and how far a rank has got, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "engine/communicator.h"

namespace hccl {

// The exception CommunicatorFailed, whose arguments are a failure's fields.
void bind_failure(nanobind::module_& module);
// The same fields, or None.
nanobind::object as_tuple(const std::optional<Failure>& failure);
Failure verdict_of(int kind, int rank, uint64_t sequence, uint64_t fingerprint, std::string text);
// Tuples in the order of GoneRank.
nanobind::list gone_ranks(const Communicator& engine);
nanobind::dict progress(Communicator& engine);

}  // namespace hccl
