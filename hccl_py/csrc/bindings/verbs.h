// The Python face of verbs.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

namespace hccl {

class Communicator;
class VerbsDevice;

// Adds VerbsDevice, ProtectionDomain, CompletionQueue, QueuePair and what carries them.
void bind_verbs(nanobind::module_& module);

// Adds a peer all of whose lanes are over queue pairs: one over each of these sockets.
void add_verbs_peer(Communicator& communicator, const std::shared_ptr<VerbsDevice>& device, int peer,
                    const std::vector<int>& lane_fds, int control_fd);

}  // namespace hccl
