// libibverbs, opened at run time.
#pragma once

#include <stdexcept>
#include <string>

#include "verbs/rdma/ibverbs.h"

namespace hccl {

// The RDMA device, its driver or its library cannot do it; the text says what to do.
class RdmaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Its functions. The library stays open: drivers have their own threads and exit handlers.
struct IbVerbs {
  // Throws RdmaError.
  static IbVerbs load(const char* file = "libibverbs.so.1");

  ibv::Device** (*get_device_list)(int* num_devices);
  void (*free_device_list)(ibv::Device**);
  const char* (*get_device_name)(ibv::Device*);
  ibv::Context* (*open_device)(ibv::Device*);
  int (*close_device)(ibv::Context*);
  int (*fork_init)();
  int (*query_device)(ibv::Context*, ibv::DeviceAttr*);
  int (*query_port)(ibv::Context*, uint8_t port, ibv::PortAttr*);
  ibv::Pd* (*alloc_pd)(ibv::Context*);
  int (*dealloc_pd)(ibv::Pd*);
  ibv::Mr* (*reg_mr)(ibv::Pd*, void* address, size_t length, int access);
  int (*dereg_mr)(ibv::Mr*);
  ibv::CompChannel* (*create_comp_channel)(ibv::Context*);
  int (*destroy_comp_channel)(ibv::CompChannel*);
  ibv::Cq* (*create_cq)(ibv::Context*, int num_entries, void* context, ibv::CompChannel*,
                        int vector);
  int (*destroy_cq)(ibv::Cq*);
  int (*get_cq_event)(ibv::CompChannel*, ibv::Cq**, void** context);
  void (*ack_cq_events)(ibv::Cq*, unsigned num_events);
  ibv::Qp* (*create_qp)(ibv::Pd*, ibv::QpInitAttr*);
  int (*destroy_qp)(ibv::Qp*);
  int (*modify_qp)(ibv::Qp*, ibv::QpAttr*, int mask);
  int (*query_qp)(ibv::Qp*, ibv::QpAttr*, int mask, ibv::QpInitAttr*);
  int (*get_async_event)(ibv::Context*, ibv::AsyncEvent*);
  void (*ack_async_event)(ibv::AsyncEvent*);
  const char* (*wc_status_str)(int status);
};

}  // namespace hccl
