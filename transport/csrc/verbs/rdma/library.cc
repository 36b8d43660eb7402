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

IbVerbs IbVerbs::load(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw RdmaError(std::string(dlerror()) +
                    "; install libibverbs and its drivers: apt install ibverbs-providers (Debian, "
                    "Ubuntu) or dnf install libibverbs (Fedora, RHEL)");
  }
  IbVerbs verbs;
  find(library, "ibv_get_device_list", verbs.get_device_list);
  find(library, "ibv_free_device_list", verbs.free_device_list);
  find(library, "ibv_get_device_name", verbs.get_device_name);
  find(library, "ibv_open_device", verbs.open_device);
  find(library, "ibv_close_device", verbs.close_device);
  find(library, "ibv_fork_init", verbs.fork_init);
  find(library, "ibv_query_device", verbs.query_device);
  find(library, "ibv_query_port", verbs.query_port);
  find(library, "ibv_alloc_pd", verbs.alloc_pd);
  find(library, "ibv_dealloc_pd", verbs.dealloc_pd);
  find(library, "ibv_reg_mr", verbs.reg_mr);
  find(library, "ibv_dereg_mr", verbs.dereg_mr);
  find(library, "ibv_create_comp_channel", verbs.create_comp_channel);
  find(library, "ibv_destroy_comp_channel", verbs.destroy_comp_channel);
  find(library, "ibv_create_cq", verbs.create_cq);
  find(library, "ibv_destroy_cq", verbs.destroy_cq);
  find(library, "ibv_get_cq_event", verbs.get_cq_event);
  find(library, "ibv_ack_cq_events", verbs.ack_cq_events);
  find(library, "ibv_create_qp", verbs.create_qp);
  find(library, "ibv_destroy_qp", verbs.destroy_qp);
  find(library, "ibv_modify_qp", verbs.modify_qp);
  find(library, "ibv_query_qp", verbs.query_qp);
  find(library, "ibv_get_async_event", verbs.get_async_event);
  find(library, "ibv_ack_async_event", verbs.ack_async_event);
  find(library, "ibv_wc_status_str", verbs.wc_status_str);
  return verbs;
}

}  // namespace hccl
