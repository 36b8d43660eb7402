// What a DLPack capsule says, for Python: nothing is copied or taken over.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl {

// Adds dlpack_view to the module.
void bind_dlpack(nanobind::module_& module);

}  // namespace hccl
