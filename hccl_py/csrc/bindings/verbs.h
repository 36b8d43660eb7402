// The Python face of verbs.
#pragma once

#include <nanobind/nanobind.h>

namespace hccl {

// Adds VerbsDevice, ProtectionDomain, CompletionQueue, QueuePair and what carries them.
void bind_verbs(nanobind::module_& module);

}  // namespace hccl
