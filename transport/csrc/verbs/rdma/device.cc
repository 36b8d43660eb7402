#include "verbs/rdma/device.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

#include "verbs/memory_region.h"

namespace hccl {

namespace {

constexpr int smallest_mtu = 256;  // code 1; each code doubles it

ibv::Context* open_named(const IbVerbs& verbs, const std::string& name) {
  int num_devices = 0;
  ibv::Device** devices = verbs.get_device_list(&num_devices);
  // ENOSYS: a kernel without RDMA.
  if (devices == nullptr && errno != ENOSYS) throw_rdma_error("ibv_get_device_list", errno);
  std::string found;
  ibv::Context* context = nullptr;
  bool exists = false;
  int error = 0;
  for (int i = 0; i < num_devices; ++i) {
    std::string one = verbs.get_device_name(devices[i]);
    found += " " + one;
    if (one != name) continue;
    exists = true;
    context = verbs.open_device(devices[i]);
    error = errno;
  }
  if (devices != nullptr) verbs.free_device_list(devices);
  if (exists && context == nullptr) throw_rdma_error("opening RDMA device " + name, error);
  if (!exists) {
    throw RdmaError("libibverbs knows no device " + name +
                    ", it has:" + (found.empty() ? " none" : found) +
                    "; is the driver's library there (apt install ibverbs-providers), and "
                    "/dev/infiniband visible in this container?");
  }
  return context;
}

}  // namespace

void throw_rdma_error(const std::string& what, int error) {
  throw RdmaError(what + ": " + std::generic_category().message(error));
}

RdmaDevice::RdmaDevice(const std::string& name, const RdmaRoute& route, const IbVerbs& verbs)
    : verbs_(verbs), name_(name), route_(route) {
  // Kernels before 5.12 give a forked child's copy of registered memory to the wrong process; on
  // later ones this does nothing.
  verbs_.fork_init();
  context_ = open_named(verbs_, name);
  ibv::PortAttr port{};
  int error = verbs_.query_device(context_, &limits_);
  if (error == 0) error = verbs_.query_port(context_, route.port, &port);
  if (error != 0) {
    verbs_.close_device(context_);
    throw_rdma_error("asking RDMA device " + name + " for its limits", error);
  }
  lid_ = port.lid;
  mtu_ = static_cast<size_t>(smallest_mtu) << (port.active_mtu - 1);
  fcntl(context_->async_fd, F_SETFL, O_NONBLOCK);
}

RdmaDevice::~RdmaDevice() { verbs_.close_device(context_); }

void RdmaDevice::take_events() {
  std::lock_guard lock(events_mutex_);
  ibv::AsyncEvent event;
  while (verbs_.get_async_event(context_, &event) == 0) {
    // Completions report the other events.
    bool is_of_port = event.element.port_num == route_.port;
    if (event.event_type == ibv::event_device_fatal) {
      lost_.store(true, std::memory_order_relaxed);
    } else if (event.event_type == ibv::event_port_err && is_of_port) {
      port_down_.store(true, std::memory_order_relaxed);
    } else if (event.event_type == ibv::event_port_active && is_of_port) {
      port_down_.store(false, std::memory_order_relaxed);
    }
    verbs_.ack_async_event(&event);
  }
}

std::string RdmaDevice::port_trouble() const {
  ibv::PortAttr port{};
  if (verbs_.query_port(context_, route_.port, &port) != 0) return "; the device does not answer";
  if (port.state == ibv::port_active) return "";
  return "; its port " + std::to_string(route_.port) + " is not active: is the link down?";
}

RdmaDomain::RdmaDomain(std::shared_ptr<RdmaDevice> device)
    : device_(std::move(device)), pd_(device_->verbs().alloc_pd(device_->context())) {
  if (pd_ == nullptr) throw_rdma_error("ibv_alloc_pd on " + device_->name(), errno);
}

RdmaDomain::~RdmaDomain() {
  for (auto& [lkey, region] : regions_) device_->verbs().dereg_mr(region);
  device_->verbs().dealloc_pd(pd_);
}

MemoryRegion RdmaDomain::register_memory(uint64_t address, uint64_t length, uint32_t access) {
  check_region(address, length, access);
  // The numbers of the access flags are those of libibverbs.
  ibv::Mr* region = device_->verbs().reg_mr(pd_, reinterpret_cast<void*>(address), length,
                                            static_cast<int>(access));
  if (region == nullptr && errno == ENOMEM) {
    throw RdmaError("registering " + std::to_string(length) + " bytes with " + device_->name() +
                    ": the limit of locked memory is too low; ulimit -l unlimited, or memlock in "
                    "/etc/security/limits.conf");
  }
  if (region == nullptr) {
    throw_rdma_error("registering " + std::to_string(length) + " bytes with " + device_->name(),
                     errno);
  }
  std::lock_guard lock(mutex_);
  regions_[region->lkey] = region;
  return {address, length, region->lkey, region->rkey, access};
}

void RdmaDomain::deregister_memory(uint32_t lkey) {
  ibv::Mr* region;
  {
    std::lock_guard lock(mutex_);
    auto found = regions_.find(lkey);
    if (found == regions_.end()) throw InvalidVerb("no such memory region");
    region = found->second;
    regions_.erase(found);
  }
  // Returns when the device does not touch the memory any more.
  device_->verbs().dereg_mr(region);
}

}  // namespace hccl
