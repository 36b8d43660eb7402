#include "bindings_dlpack.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace nb = nanobind;

namespace hccl {
namespace {

// The structures of DLPack, whose layout is its interface (dmlc/dlpack, dlpack.h).
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C-contiguous
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
};
struct DLVersion {
  uint32_t major;
  uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLVersion version;
  void* manager;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
constexpr uint64_t read_only_flag = 1;
constexpr uint32_t known_major = 1;

bool is_contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] > 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

nb::tuple describe(const DLTensor& tensor, bool read_only) {
  nb::list shape;
  for (int32_t i = 0; i < tensor.ndim; ++i) shape.append(tensor.shape[i]);
  return nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset,
                        nb::tuple(shape), is_contiguous(tensor), read_only,
                        nb::make_tuple(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes));
}

}  // namespace

void bind_dlpack(nb::module_& module) {
  // Address, shape, whether it is C-contiguous, whether it is known to be read-only, and the
  // element type. The memory lives as long as the capsule, which stays its owner.
  module.def("dlpack_view", [](nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
      void* found = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
      return describe(static_cast<DLManagedTensor*>(found)->tensor, false);
    }
    void* found = PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned");
    if (found == nullptr) throw nb::python_error();
    auto* managed = static_cast<DLManagedTensorVersioned*>(found);
    if (managed->version.major != known_major) {
      throw std::invalid_argument("a DLPack capsule of an unknown version");
    }
    return describe(managed->tensor, (managed->flags & read_only_flag) != 0);
  });
}

}  // namespace hccl
