// An open RDMA device with one of its ports, and memory registered with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "verbs/rdma/library.h"
#include "verbs/verbs.h"

namespace hccl {

// How packets leave a port. The port and its GID are chosen in Python, from /sys.
struct RdmaRoute {
  uint8_t port = 1;
  uint8_t gid_index = 0;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
};

// Thread-safe. Must outlive its domains.
class RdmaDevice {
 public:
  // `name` as in /sys/class/infiniband. Throws RdmaError.
  RdmaDevice(const std::string& name, const RdmaRoute& route,
             const IbVerbs& verbs = IbVerbs::load());
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;

  const IbVerbs& verbs() const { return verbs_; }
  ibv::Context* context() const { return context_; }
  const ibv::DeviceAttr& limits() const { return limits_; }
  const RdmaRoute& route() const { return route_; }
  const std::string& name() const { return name_; }
  // Bytes of a packet's payload.
  size_t mtu() const { return mtu_; }
  // Of the port, on InfiniBand; 0 on Ethernet.
  uint16_t lid() const { return lid_; }

  // Readable when the device has an event.
  int event_fd() const { return context_->async_fd; }
  // Reads pending events; never blocks.
  void take_events();
  // Describes a port that is not active; empty if it is. For messages.
  std::string port_trouble() const;
  // The device is lost: posted requests will never complete.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // By its events. It may become active again.
  bool port_down() const { return port_down_.load(std::memory_order_relaxed); }

 private:
  const IbVerbs verbs_;
  const std::string name_;
  const RdmaRoute route_;
  ibv::Context* context_ = nullptr;
  ibv::DeviceAttr limits_{};
  size_t mtu_ = 0;
  uint16_t lid_ = 0;
  std::mutex events_mutex_;
  // Hints, without ordering.
  std::atomic<bool> lost_{false};
  std::atomic<bool> port_down_{false};
};

// Protection domain. Thread-safe. Must outlive its queue pairs.
class RdmaDomain {
 public:
  // Throws RdmaError.
  explicit RdmaDomain(std::shared_ptr<RdmaDevice> device);
  ~RdmaDomain();
  RdmaDomain(const RdmaDomain&) = delete;
  RdmaDomain& operator=(const RdmaDomain&) = delete;

  RdmaDevice& device() const { return *device_; }
  ibv::Pd* pd() const { return pd_; }
  // Throws InvalidVerb; RdmaError if the device or the limit of locked memory prevents it.
  MemoryRegion register_memory(uint64_t address, uint64_t length, uint32_t access);
  void deregister_memory(uint32_t lkey);

 private:
  const std::shared_ptr<RdmaDevice> device_;
  ibv::Pd* pd_;
  std::mutex mutex_;
  std::unordered_map<uint32_t, ibv::Mr*> regions_;  // by lkey
};

// An RdmaError: what failed, with the operating system's reason.
[[noreturn]] void throw_rdma_error(const std::string& what, int error);

}  // namespace hccl
