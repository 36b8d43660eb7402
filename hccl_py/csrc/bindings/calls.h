// Calls as Python makes them: plans, what a collective's ranks agree on, the engine's entries.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "engine/communicator.h"

namespace hccl {

// The Communicator as Python holds it. The GIL guards `spare`, the request of the last blocking
// call: the next one takes it.
struct PyCommunicator {
  std::shared_ptr<Communicator> engine;
  RequestPtr spare;
};

// The classes Plan, Prepared and Work, and the entries run_... and start_... of `communicator`.
void bind_calls(nanobind::module_& module, nanobind::class_<PyCommunicator>& communicator);

}  // namespace hccl
