#include "verbs/rdma/library.h"

#include <dlfcn.h>

namespace hccl {

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw RdmaError(std::string("libibverbs has no ") + name + ": too old");
  function = reinterpret_cast<Function>(found);
}

}  // namespace

IbVerbs::IbVerbs(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw RdmaError(std::string(dlerror()) +
                    "; install libibverbs and its drivers: apt install ibverbs-providers (Debian, "
                    "Ubuntu) or dnf install libibverbs (Fedora, RHEL)");
  }
  find(library, "ibv_get_device_list", get_device_list);
  find(library, "ibv_free_device_list", free_device_list);
  find(library, "ibv_get_device_name", get_device_name);
  find(library, "ibv_open_device", open_device);
  find(library, "ibv_close_device", close_device);
  find(library, "ibv_fork_init", fork_init);
  find(library, "ibv_query_device", query_device);
  find(library, "ibv_query_port", query_port);
  find(library, "ibv_alloc_pd", alloc_pd);
  find(library, "ibv_dealloc_pd", dealloc_pd);
  find(library, "ibv_reg_mr", reg_mr);
  find(library, "ibv_dereg_mr", dereg_mr);
  find(library, "ibv_create_comp_channel", create_comp_channel);
  find(library, "ibv_destroy_comp_channel", destroy_comp_channel);
  find(library, "ibv_create_cq", create_cq);
  find(library, "ibv_destroy_cq", destroy_cq);
  find(library, "ibv_get_cq_event", get_cq_event);
  find(library, "ibv_ack_cq_events", ack_cq_events);
  find(library, "ibv_create_qp", create_qp);
  find(library, "ibv_destroy_qp", destroy_qp);
  find(library, "ibv_modify_qp", modify_qp);
  find(library, "ibv_query_qp", query_qp);
  find(library, "ibv_get_async_event", get_async_event);
  find(library, "ibv_ack_async_event", ack_async_event);
  find(library, "ibv_wc_status_str", wc_status_str);
}

}  // namespace hccl
