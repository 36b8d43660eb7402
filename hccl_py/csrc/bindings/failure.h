// Failures and how far a rank has got, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/communicator.h"

namespace hccl {

// The classes Cause, Failure and what they hold, and the exception CommunicatorFailed.
void bind_failure(nanobind::module_& module);
// None for none.
nanobind::object as_object(const FailurePtr& failure);
nanobind::dict progress(Communicator& engine);

}  // namespace hccl
