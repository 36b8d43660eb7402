// What the flight recorder and the counters hold, as Python sees it; and the signal that asks for it.
#pragma once

#include <nanobind/nanobind.h>

#include "engine/communicator.h"

namespace hccl {

// The calls still remembered, oldest first, as tuples in the order of CallRecord.
nanobind::list records(const Recorder& recorder);
// Sequence number and fingerprint of the collectives first..last that are still remembered.
nanobind::list history(const Recorder& recorder, uint64_t first, uint64_t last);
// The same names for lanes and for queue pairs.
nanobind::dict device_statistics(const DeviceStatistics& statistics);
// All counters, by device and of late ranks.
nanobind::dict statistics(const Communicator& engine);

void bind_signal_bell(nanobind::module_& module);

}  // namespace hccl
