// The functions of hccl.h for memory.
#include <map>

#include "libhccl/api.h"

namespace hccl {

namespace {

std::mutex mutex;
std::map<void*, PyObject*>& allocated() {  // by address; the objects keep the memory
  static auto& all = *new std::map<void*, PyObject*>;
  return all;
}

struct Registered {
  void* address;
  size_t size;
};

Handles<Registered>& registered() {
  static auto& all = *new Handles<Registered>(4, "handle of hcclCommRegister");
  return all;
}

}  // namespace

}  // namespace hccl

using namespace hccl;

extern "C" {

hcclResult_t hcclMemAlloc(void** ptr, size_t size) {
  return guarded("hcclMemAlloc", [&] {
    if (ptr == nullptr) reject("ptr: expected an address for the result, got NULL");
    if (size == 0) reject("size: expected 1 or more, got 0");
    require_python();
    Gil gil;
    Object made = call_python("allocate", "(K)", (unsigned long long)size);
    PyObject* keeper = made.item(1);
    api.Py_IncRef(keeper);
    *ptr = reinterpret_cast<void*>(uintptr_t(made.number(0)));
    std::lock_guard guard(mutex);
    allocated()[*ptr] = keeper;
  });
}

hcclResult_t hcclMemFree(void* ptr) {
  return guarded("hcclMemFree", [&] {
    if (ptr == nullptr) return;
    PyObject* keeper;
    {
      std::lock_guard guard(mutex);
      auto found = allocated().find(ptr);
      if (found == allocated().end()) {
        reject("ptr: expected memory of hcclMemAlloc, got another address, or freed memory");
      }
      keeper = found->second;
      allocated().erase(found);
    }
    Gil gil;
    api.Py_DecRef(keeper);
  });
}

hcclResult_t hcclCommRegister(hcclComm_t comm, void* buff, size_t size, void** handle) {
  return guarded("hcclCommRegister", [&] {
    if (handle == nullptr) reject("handle: expected an address for the result, got NULL");
    if (buff == nullptr || size == 0) reject("buff: expected a buffer of 1 byte or more");
    communicators().find(comm)->require_open();
    *handle = registered().add(std::make_shared<Registered>(Registered{buff, size}));
  });
}

hcclResult_t hcclCommDeregister(hcclComm_t comm, void* handle) {
  return guarded("hcclCommDeregister", [&] {
    communicators().find(comm);
    registered().take(handle);
  });
}

}  // extern "C"
