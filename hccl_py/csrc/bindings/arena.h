// The Python face of arena.h.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl {

// Adds Arena and Region.
void bind_arena(nanobind::module_& module);

}  // namespace hccl
