// A device that does what the test says, behind the functions of libibverbs: what soft-RoCE cannot
// do.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "check.h"
#include "verbs/rdma/device.h"

namespace hccl::test {

// One at a time: the functions of a library have nowhere else to keep what they know.
class FakeDevice {
 public:
  FakeDevice() {
    current() = this;
    context.async_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = [](ibv::Cq*, int) { return 0; };
    context.ops.post_send = [](ibv::Qp*, ibv::SendWr*, ibv::SendWr**) {
      return current()->refusal;
    };
    context.ops.post_recv = [](ibv::Qp*, ibv::RecvWr*, ibv::RecvWr**) {
      return current()->refusal;
    };
    channel.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pair.context = &context;
    pair.qp_num = 17;
    limits.max_qp_wr = limits.max_cqe = 16384;
    limits.max_sge = 32;
    limits.max_qp_rd_atom = limits.max_qp_init_rd_atom = 16;
  }
  ~FakeDevice() {
    ::close(context.async_fd);
    ::close(channel.fd);
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  static IbVerbs verbs() {
    IbVerbs verbs{};
    verbs.get_device_list = [](int* num_devices) {
      *num_devices = 1;
      return &current()->device;
    };
    verbs.free_device_list = [](ibv::Device**) {};
    verbs.get_device_name = [](ibv::Device*) { return "fake0"; };
    verbs.open_device = [](ibv::Device*) { return &current()->context; };
    verbs.close_device = [](ibv::Context*) { return 0; };
    verbs.fork_init = [] { return 0; };
    verbs.query_device = [](ibv::Context*, ibv::DeviceAttr* limits) {
      *limits = current()->limits;
      return 0;
    };
    verbs.query_port = [](ibv::Context*, uint8_t, ibv::PortAttr* port) {
      *port = {};
      port->state = ibv::port_active;
      port->active_mtu = 5;
      return 0;
    };
    verbs.alloc_pd = [](ibv::Context*) { return &current()->pd; };
    verbs.dealloc_pd = [](ibv::Pd*) { return 0; };
    verbs.reg_mr = [](ibv::Pd*, void*, size_t, int) {
      errno = ENOMEM;  // the limit of locked memory
      return static_cast<ibv::Mr*>(nullptr);
    };
    verbs.create_comp_channel = [](ibv::Context*) { return &current()->channel; };
    verbs.destroy_comp_channel = [](ibv::CompChannel*) { return 0; };
    verbs.create_cq = [](ibv::Context*, int, void*, ibv::CompChannel*, int) {
      return &current()->queue;
    };
    verbs.destroy_cq = [](ibv::Cq*) { return 0; };
    verbs.create_qp = [](ibv::Pd*, ibv::QpInitAttr*) { return &current()->pair; };
    verbs.destroy_qp = [](ibv::Qp*) { return 0; };
    verbs.modify_qp = [](ibv::Qp*, ibv::QpAttr* attributes, int mask) {
      current()->modified.push_back({*attributes, mask});
      return 0;
    };
    verbs.get_async_event = [](ibv::Context*, ibv::AsyncEvent* event) {
      if (current()->events.empty()) return -1;
      *event = current()->events.front();
      current()->events.pop_front();
      return 0;
    };
    verbs.ack_async_event = [](ibv::AsyncEvent*) { ++current()->num_acknowledged; };
    verbs.wc_status_str = [](int) { return "as the test says"; };
    return verbs;
  }

  void has_event(int type) {
    ibv::AsyncEvent event{};
    event.event_type = type;
    event.element.port_num = 1;
    events.push_back(event);
  }

  ibv::Device* device = nullptr;
  ibv::Context context{};
  ibv::DeviceAttr limits{};
  ibv::Pd pd{&context, 0};
  ibv::CompChannel channel{&context, -1};
  ibv::Cq queue{&context};
  ibv::Qp pair{};
  std::deque<ibv::Wc> completions;
  std::deque<ibv::AsyncEvent> events;
  std::vector<std::pair<ibv::QpAttr, int>> modified;
  int num_acknowledged = 0;
  int refusal = 0;       // of requests: an errno
  bool is_gone = false;  // its queues cannot be polled any more

 private:
  static FakeDevice*& current() {
    static FakeDevice* the_one = nullptr;
    return the_one;
  }
  static int poll_cq(ibv::Cq*, int num_entries, ibv::Wc* taken) {
    FakeDevice& self = *current();
    if (self.is_gone) return -1;
    int count = 0;
    for (; count < num_entries && !self.completions.empty(); ++count) {
      taken[count] = self.completions.front();
      self.completions.pop_front();
    }
    return count;
  }
};

}  // namespace hccl::test
