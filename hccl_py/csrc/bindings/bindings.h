// The functions that the files of this folder share. Each file binds the header of its name,
// one-to-one, without logic. All are called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "base/stream.h"
#include "bindings/c_entry.h"
#include "engine/communicator.h"
#include "lanes/path.h"

namespace hccl {

class ProgressThread;
class RdmaLaneEnd;
class UnderlyingLane;

using Released = nanobind::call_guard<nanobind::gil_scoped_release>;
using AnyDict = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;
using Counts = nanobind::typed<nanobind::dict, nanobind::str, uint64_t>;

inline std::byte* pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

// calls/calls.cc: Plan, Prepared, Work and UnsubmittedCall, which `communicator` makes and runs.
void bind_calls(nanobind::module_& module, nanobind::class_<Communicator>& communicator);
// calls/plan_cache.cc: PlanCache.
void bind_plan_cache(nanobind::module_& module);
// calls/call_entry.cc: CallEntry, and entering(), which has methods of a communicator enter by it.
// Returns the type of such methods.
nanobind::object bind_call_entry(nanobind::module_& module);
// calls/torch_calls.cc: plain_call(), which has methods of a torch process group enter by a
// CallEntry.
void bind_torch_calls(nanobind::module_& module, const nanobind::object& wrapper_type);
// calls/graph.cc: Graph, whose calls are replayed.
void bind_graph(nanobind::module_& module);
// Replays a Graph to its end; false if Python must check it first.
bool replay(nanobind::handle graph);
// Runs signal handlers; throws their exceptions.
void check_signals();

// calls/memory.cc: Arena and Region, ArrayReader, and dlpack_view: what is in a DLPack capsule.
void bind_memory(nanobind::module_& module);

// calls/c_entry.cc: c_entry, the table of functions for programs in C.
void bind_c_entry(nanobind::module_& module);
const CEntry& c_entry();
// Its `run`, on the main thread of Python; throws the exceptions of signal handlers.
CResult run_checking_signals(CEngine* engine, CCall* const* calls, size_t num_calls,
                             double timeout_s);

// calls/xla_calls.cc: XlaCalls, collectives of a compiled program, and xla_handler, which runs
// them.
void bind_xla_calls(nanobind::module_& module);

// calls/window.cc: Window, which `communicator` makes, and its calls.
void bind_window(nanobind::module_& module, nanobind::class_<Communicator>& communicator);

// calls/overlap.cc: find_overlap, which of a call's blocks must not share memory and do.
void bind_overlap(nanobind::module_& module);

// python_lanes.cc: Stream, and the exceptions of signal handlers inside lanes of Python.
void bind_python_lanes(nanobind::module_& module);
// Adds a peer all of whose lanes are Python objects.
void add_python_lanes(Communicator& communicator, int peer,
                      const std::vector<nanobind::object>& lanes, int control_fd);
// Closes lane and provider when it ends.
std::shared_ptr<UnderlyingLane> python_underlying_lane(const nanobind::object& provider,
                                                       const nanobind::object& lane);
// Takes a descriptor over, or shares a Stream.
std::shared_ptr<Stream> stream_of(nanobind::handle connection);
// Throws the exception of a signal handler on this thread within a Python Stream.
void rethrow_stream_interruption();

// reports.cc: Cause, Failure and their fields, the exception CommunicatorFailed, and the entries of
// `communicator` for failures, past calls and counters.
void bind_reports(nanobind::module_& module, nanobind::class_<Communicator>& communicator);
// The CommunicatorFailed of Python.
nanobind::object python_exception(const CommunicatorFailed& error);
// The same names for lanes and for queue pairs.
Counts device_statistics(const DeviceStatistics& statistics);

// verbs.cc: ProtectionDomain, CompletionQueue and QueuePair, and RdmaDevice, RdmaDomain,
// RdmaQueuePair, RdmaRegistrations and RdmaLaneEnd.
void bind_verbs(nanobind::module_& module);
// Adds a peer all of whose lanes are over queue pairs: one over each of these sockets.
void add_verbs_peer(Communicator& communicator, const std::shared_ptr<ProgressThread>& progress,
                    int peer, const std::vector<int>& lane_fds, int control_fd,
                    const std::string& name);
// The same over queue pairs of an RDMA device, in RTS: one for each lane.
void add_rdma_peer(Communicator& communicator, int peer,
                   const std::vector<std::shared_ptr<RdmaLaneEnd>>& ends, int control_fd);

}  // namespace hccl
