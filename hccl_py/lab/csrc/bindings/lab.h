// What the files of this folder offer each other. No logic lives here.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl {

using Released = nanobind::call_guard<nanobind::gil_scoped_release>;

// emulation.cc: EmulatedNetwork.
void bind_emulation(nanobind::module_& module);
// simulation.cc: World, Programs and VirtualTime.
void bind_simulation(nanobind::module_& module);

}  // namespace hccl
