// The Python face of perftest.h.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl {

// Adds PerftestEnd and the loops that hccl-perftest times.
void bind_perftest(nanobind::module_& module);

}  // namespace hccl
