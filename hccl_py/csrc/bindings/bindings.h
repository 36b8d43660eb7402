// What the files of this folder offer each other. Each binds the header of its name, one-to-one.
// No logic lives here. All of it is called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "base/stream.h"
#include "engine/communicator.h"
#include "lanes/path.h"

namespace hccl {

class VerbsDevice;

// The Communicator as Python holds it. The GIL guards `spare`, the request of the last blocking
// call: the next one takes it.
struct PyCommunicator {
  std::shared_ptr<Communicator> engine;
  RequestPtr spare;
};

// calls.cc: Plan, Prepared and Work, and the entries run_... and start_... of `communicator`.
void bind_calls(nanobind::module_& module, nanobind::class_<PyCommunicator>& communicator);

// arena.cc: Arena and Region.
void bind_arena(nanobind::module_& module);

// dlpack.cc: dlpack_view, which says what is in a DLPack capsule.
void bind_dlpack(nanobind::module_& module);

// failure.cc: Cause, Failure and what they hold, and the exception CommunicatorFailed.
void bind_failure(nanobind::module_& module);
nanobind::object as_object(const FailurePtr& failure);  // None for none
nanobind::dict progress(Communicator& engine);

// provider.cc: a signal handler's exception leaves a lane written in Python.
void bind_provider();

// recorder.cc: the calls still remembered, oldest first, as tuples in the order of CallRecord.
nanobind::list records(const Recorder& recorder);
// Sequence number, fingerprint and bytes of the collectives first..last that are still remembered.
nanobind::list call_log(const Recorder& recorder, uint64_t first, uint64_t last);
// The same names for lanes and for queue pairs.
nanobind::dict device_statistics(const DeviceStatistics& statistics);
// All counters, by device and of stragglers.
nanobind::dict statistics(const Communicator& engine);
void bind_signal_bell(nanobind::module_& module);

// stream.cc: connections, as a raw descriptor or a Stream.
void bind_stream(nanobind::module_& module);
// Takes a descriptor over, or shares a Stream.
std::shared_ptr<Stream> stream_of(nanobind::handle connection);
std::vector<std::shared_ptr<Stream>> streams_of(const nanobind::list& connections);
// Throws what a signal handler raised on this thread while a Stream of Python's was at work.
void rethrow_stream_interruption();
nanobind::list path_statistics(const std::vector<std::shared_ptr<PathStatistics>>& records);

// verbs.cc: VerbsDevice, ProtectionDomain, CompletionQueue and QueuePair.
void bind_verbs(nanobind::module_& module);
// Adds a peer all of whose lanes are over queue pairs: one over each of these sockets.
void add_verbs_peer(Communicator& communicator, const std::shared_ptr<VerbsDevice>& device, int peer,
                    const std::vector<int>& lane_fds, int control_fd);

}  // namespace hccl
