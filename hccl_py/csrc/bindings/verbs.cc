// Bindings of verbs, one-to-one with verbs.h, queue_pair.h, completion_queue.h and rdma/.
//
// Everything that may take a queue pair's lock releases the GIL first: the holder of the lock may
// need the GIL for a Python lane.
#include "bindings/bindings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "engine/communicator.h"
#include "verbs/lane/lane_over_queue_pair.h"
#include "verbs/rdma/lane_end.h"
#include "verbs/rdma/queue_pair.h"
#include "verbs/software/lane_under_queue_pair.h"
#include "verbs/software/queue_pair.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// Longer than an eager message, which leaves whether it is awaited or not.
constexpr size_t min_fragment_bytes = PointToPoint::longest_eager_bytes + 1;

using Pieces = std::vector<std::tuple<uint64_t, uint32_t, uint32_t>>;

// The tree of transport/errors.py.
void raise_verbs_error(const std::exception_ptr& pointer, void*) {
  auto raise = [](const char* type, const std::exception& error) {
    nb::object errors = nb::module_::import_("hccl_py.transport.errors");
    PyErr_SetString(nb::object(errors.attr(type)).ptr(), error.what());
  };
  try {
    std::rethrow_exception(pointer);
  } catch (const InvalidVerb& error) {
    raise("InvalidArgumentError", error);
  } catch (const QueueFull& error) {
    raise("QueueFullError", error);
  } catch (const CompletionQueueOverflow& error) {
    raise("CompletionQueueOverflowError", error);
  } catch (const RdmaError& error) {
    raise("VerbsError", error);
  }
}

template <typename T>
T attribute(const nb::object& attributes, const char* name) {
  T value;
  if (nb::try_cast(attributes.attr(name), value)) return value;
  throw InvalidVerb(std::string(name) + " is not a number in range");
}

// From the class of this name in transport/providers/verbs/types.py.
QueuePairAttributes attributes_of(const nb::object& given) {
  return {
      .max_send_wr = attribute<size_t>(given, "max_send_wr"),
      .max_recv_wr = attribute<size_t>(given, "max_recv_wr"),
      .max_sge = attribute<size_t>(given, "max_sge"),
      .max_inline = attribute<size_t>(given, "max_inline"),
      .path_mtu = attribute<size_t>(given, "path_mtu"),
      .max_rd_atomic = attribute<size_t>(given, "max_rd_atomic"),
      .retry_count = attribute<int>(given, "retry_count"),
      .rnr_retry = attribute<int>(given, "rnr_retry"),
      .timeout = duration_of(attribute<double>(given, "timeout_s")),
      .min_rnr_timer = duration_of(attribute<double>(given, "min_rnr_timer_s")),
  };
}

size_t gather(const Pieces& pieces, std::span<ScatterGather> out) {
  if (pieces.size() > out.size()) throw InvalidVerb("more than 32 scatter/gather pieces");
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto [address, length, lkey] = pieces[i];
    out[i] = {address, length, lkey};
  }
  return pieces.size();
}

template <class Pair>
void post_send(Pair& pair, uint64_t wr_id, int opcode, uint32_t flags, uint32_t imm, uint32_t rkey,
               uint64_t remote_address, const Pieces& pieces) {
  ScatterGather list[max_scatter_gather];
  SendRequest request{wr_id,          static_cast<Opcode>(opcode), flags, imm, rkey,
                      remote_address, {list, gather(pieces, list)}};
  nb::gil_scoped_release release;
  pair.post_send(request);
}

template <class Pair>
void post_recv(Pair& pair, uint64_t wr_id, const Pieces& pieces) {
  ScatterGather list[max_scatter_gather];
  RecvRequest request{wr_id, {list, gather(pieces, list)}};
  nb::gil_scoped_release release;
  pair.post_recv(request);
}

// wr_id, status, opcode, bytes, immediate value, number of the queue pair.
using CompletionTuple =
    nb::typed<nb::tuple, uint64_t, int, int, uint32_t, std::optional<uint32_t>, uint32_t>;
using CompletionList = nb::typed<nb::list, CompletionTuple>;

// The completions that `take` writes to a span of that many; it returns how many these are.
template <class Take>
CompletionList completions(size_t max_completions, Take take) {
  std::vector<Completion> out(max_completions);
  {
    nb::gil_scoped_release release;
    out.resize(take(out));
  }
  nb::list result;
  for (const Completion& c : out) {
    nb::object imm = c.has_imm ? nb::object(nb::int_(c.imm)) : nb::object(nb::none());
    result.append(nb::make_tuple(c.wr_id, static_cast<int>(c.status), static_cast<int>(c.opcode),
                                 c.byte_len, imm, c.qp_num));
  }
  return result;
}

CompletionList poll(CompletionQueue& queue, size_t max_completions) {
  return completions(max_completions, [&](auto& out) { return queue.poll(out); });
}

CompletionList wait(CompletionQueue& queue, size_t max_completions, double timeout_s) {
  // Until the GIL is held again, which an ended interpreter never grants.
  CompletionQueue::Guest guest(queue);
  return completions(max_completions, [&](auto& out) {
    return queue.wait(out, VerbsClock::now() + duration_of(timeout_s), check_signals);
  });
}

template <class Pair>
Counts queue_pair_statistics(const Pair& pair) {
  const QueuePairStatistics& s = pair.statistics();
  Counts result = device_statistics(s);
  result["received_messages"] = s.received_messages.value();
  result["received_bytes"] = s.received_bytes.value();
  result["timeouts"] = s.timeouts.value();
  return result;
}

// The end of a queue pair waits for its peer, which may need the GIL. The limited API cannot tell
// whether this thread has it, so this takes it first.
void destroy_without_gil(QueuePair* last) {
  if (!nb::is_alive()) return delete last;
  nb::gil_scoped_acquire gil;
  nb::gil_scoped_release release;
  delete last;
}

std::shared_ptr<QueuePair> make_queue_pair(std::shared_ptr<ProgressThread> progress,
                                           std::shared_ptr<ProtectionDomain> domain,
                                           std::shared_ptr<CompletionQueue> send_queue,
                                           std::shared_ptr<CompletionQueue> recv_queue,
                                           const nb::object& given) {
  QueuePairAttributes attributes = attributes_of(given);
  nb::gil_scoped_release release;
  auto* made = new QueuePair(std::move(progress), std::move(domain), std::move(send_queue),
                             std::move(recv_queue), attributes);
  return {made, destroy_without_gil};
}

// The methods of either kind for Python's QueuePair.
template <class Pair>
void bind_queue_pair(nb::class_<Pair>& pair) {
  pair.def("number", &Pair::number)
      .def(
          "state", [](Pair& self) { return static_cast<int>(self.state()); }, Released())
      .def("reason", &Pair::reason, Released())
      .def("attach", &Pair::attach, Released())
      .def("set_attributes",
           [](Pair& self, const nb::object& given) {
             QueuePairAttributes attributes = attributes_of(given);
             nb::gil_scoped_release release;
             self.set_attributes(attributes);
           })
      .def(
          "modify", [](Pair& self, int state) { self.modify(static_cast<QueuePairState>(state)); },
          Released())
      .def("post_send", &post_send<Pair>)
      .def("post_recv", &post_recv<Pair>)
      .def("statistics", &queue_pair_statistics<Pair>)
      .def("close", &Pair::close, Released());
}

template <class Domain>
void bind_domain(nb::class_<Domain>& domain) {
  domain
      .def("register_memory",
           [](Domain& self, uint64_t address, uint64_t length, uint32_t access) {
             nb::gil_scoped_release release;
             MemoryRegion region = self.register_memory(address, length, access);
             return std::tuple(region.lkey, region.rkey);
           })
      .def("deregister_memory", &Domain::deregister_memory, Released());
}

void bind_rdma(nb::module_& module) {
  nb::class_<RdmaDevice>(module, "RdmaDevice")
      .def("__init__",
           [](RdmaDevice* device, const std::string& name, std::array<uint8_t, 4> route) {
             new (device) RdmaDevice(name, {route[0], route[1], route[2], route[3]});
           })
      .def("mtu", &RdmaDevice::mtu)
      .def("lid", &RdmaDevice::lid);
  nb::class_<RdmaDomain> domain(module, "RdmaDomain");
  domain.def(nb::init<std::shared_ptr<RdmaDevice>>());
  bind_domain(domain);
  nb::class_<RdmaPeer>(module, "RdmaPeer")
      .def("__init__",
           [](RdmaPeer* peer, std::array<uint8_t, 16> gid, uint32_t qp_num, uint32_t psn,
              size_t mtu, uint16_t lid) { new (peer) RdmaPeer{gid, qp_num, psn, mtu, lid}; });
  nb::class_<RdmaQueuePair> pair(module, "RdmaQueuePair");
  bind_queue_pair(pair);
  pair.def("psn", &RdmaQueuePair::psn)
      .def_static("create",
                  [](std::shared_ptr<RdmaDomain> its_domain, std::shared_ptr<CompletionQueue> sends,
                     std::shared_ptr<CompletionQueue> recvs, const nb::object& attributes) {
                    return std::make_shared<RdmaQueuePair>(std::move(its_domain), std::move(sends),
                                                           std::move(recvs),
                                                           attributes_of(attributes));
                  });
  nb::class_<RdmaRegistrations>(module, "RdmaRegistrations")
      .def_static(
          "create",
          [](std::shared_ptr<RdmaDomain> its_domain, std::shared_ptr<Arena> arena,
             MemoryWatch* watch, size_t max_bytes) {
            return RdmaRegistrations::create(std::move(its_domain), std::move(arena), watch,
                                             max_bytes);
          },
          nb::arg("domain"), nb::arg("arena"), nb::arg("watch").none(), nb::arg("max_bytes"))
      .def("num_bytes", &RdmaRegistrations::num_bytes, Released());
  nb::class_<RdmaLaneEnd>(module, "RdmaLaneEnd")
      .def("__init__",
           [](RdmaLaneEnd* end, RdmaLaneEnd::Registrations devices, size_t num_pairs,
              size_t slot_bytes, double timeout_s, int retry_count) {
             new (end) RdmaLaneEnd(std::move(devices), num_pairs, slot_bytes,
                                   {duration_of(timeout_s), retry_count});
           })
      .def("registrations", &RdmaLaneEnd::registrations)
      .def("keep", &RdmaLaneEnd::keep, Released())
      .def("pairs", &RdmaLaneEnd::pairs);
}

void bind_underlying_lanes(nb::module_& module) {
  nb::class_<UnderlyingLane>(module, "UnderlyingLane");
  nb::class_<ShmEndpoint>(module, "ShmEndpoint")
      .def(nb::init<std::shared_ptr<Arena>>())
      .def("segment_fd", &ShmEndpoint::segment_fd)
      .def("doorbell_fd", &ShmEndpoint::doorbell_fd)
      .def("connect", [](ShmEndpoint& endpoint, int rank, int segment_fd, int doorbell_fd,
                         int arena_fd, int control_fd) {
        return endpoint.connect(rank, {Descriptor(segment_fd), Descriptor(doorbell_fd),
                                       Descriptor(arena_fd), Descriptor(control_fd)});
      });
  module.def("tcp_underlying_lane", [](int fd) { return tcp_underlying_lane(Descriptor(fd)); });
  module.def("python_underlying_lane", &python_underlying_lane);
  module.def("loopback_underlying_lanes", &loopback_underlying_lanes);
}

// The lane under a queue pair: another thread detects its breaks, see Connections::LockedLane.
class Replaced final : public PathObserver {
 public:
  void lane_wanted(const TcpLane&) override {}
  bool path_lost(const TcpLane&, size_t) override { return true; }
};
Replaced replaced;

// Records in the communicator, which outlives its lanes, that a lane continues over another device.
LaneOverQueuePair::PathObserver device_changes(Communicator& communicator, int peer,
                                               const RdmaLaneEnd::Registrations& devices) {
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(device->domain()->device().name());
  return [&communicator, peer, names](size_t from, size_t to, const std::string& why) {
    communicator.connections().note_device_change(
        peer, names[from],
        "rank " + std::to_string(communicator.options().rank) + ": RDMA device " + names[from] +
            " to rank " + std::to_string(peer) + ": " + why + "; its messages take " + names[to]);
  };
}

}  // namespace

void add_verbs_peer(Communicator& communicator, const std::shared_ptr<ProgressThread>& progress,
                    int peer, const std::vector<int>& lane_fds, int control_fd,
                    const std::string& name) {
  std::vector<Descriptor> sockets(lane_fds.begin(), lane_fds.end());
  auto control = std::make_shared<SocketStream>(Descriptor(control_fd));
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<ReplaceableLane>> underlying;
  TcpOptions options;
  options.path_timeout_s = communicator.options().path_timeout_s;
  options.names = {name};
  options.observer = &replaced;
  for (Descriptor& socket : sockets) {
    auto pair = QueuePair::connected(
        progress, tcp_underlying_lane(std::move(socket), peer, options), LaneSlots::attributes());
    underlying.push_back(std::make_unique<LaneUnderQueuePair>(pair));
    std::vector<LaneSlots::Pairs> paths = {{std::move(pair)}};
    auto slots = std::make_unique<LaneSlots>(std::move(paths), communicator.options().slot_bytes);
    lanes.push_back(
        std::make_unique<LaneOverQueuePair>(peer, std::move(slots), communicator.statistics()));
  }
  communicator.add_peer(peer, std::move(lanes), {std::move(control)});
  communicator.connections().add_locked_lanes(peer, std::move(underlying));
}

void add_rdma_peer(Communicator& communicator, int peer,
                   const std::vector<std::shared_ptr<RdmaLaneEnd>>& ends, int control_fd) {
  using Traffic = LaneOverQueuePair::Traffic;
  auto control = std::make_shared<SocketStream>(Descriptor(control_fd));
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const auto& end : ends) {
    auto lane =
        std::make_unique<LaneOverQueuePair>(peer, end->take_slots(), communicator.statistics());
    const RdmaLaneEnd::Registrations& devices = end->registrations();
    LaneOverQueuePair::Memories memories(devices.begin(), devices.end());
    if (lanes.size() + 1 == ends.size()) {
      lane->set_registered(std::move(memories), Traffic::transfers, min_fragment_bytes);
    } else {
      lane->set_registered(std::move(memories), Traffic::collectives);
    }
    lane->set_observer(device_changes(communicator, peer, devices));
    lanes.push_back(std::move(lane));
  }
  communicator.add_peer(peer, std::move(lanes), {std::move(control)});
}

void bind_verbs(nb::module_& module) {
  nb::register_exception_translator(raise_verbs_error);
  bind_underlying_lanes(module);

  nb::class_<ProtectionDomain> domain(module, "ProtectionDomain");
  domain.def(nb::init<>());
  bind_domain(domain);

  nb::class_<CompletionQueue>(module, "CompletionQueue")
      .def(nb::init<size_t>())
      .def("poll", &poll)
      .def("wait", &wait)
      .def("close", &CompletionQueue::close, Released());

  nb::class_<QueuePair> pair(module, "QueuePair");
  pair.def_static("create", &make_queue_pair);
  bind_queue_pair(pair);
  bind_rdma(module);
}

}  // namespace hccl
