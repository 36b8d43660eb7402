// Reads numpy arrays and torch tensors by their C structures. An attribute of a tensor in Python
// takes as long as a tenth of a small call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace hccl {

// The structures of DLPack, whose layout is its interface (dmlc/dlpack, dlpack.h).
using DLTensor = nanobind::dlpack::dltensor;

bool is_contiguous(const DLTensor& tensor);

// A type of elements: `kind` is an ElementType of hccl_py/memory/element_types.py.
struct Elements {
  // Of arrays of one Python type: numpy's dtype object, or the number of DLPack's.
  uintptr_t id = 0;
  nanobind::object kind;
  size_t item_bytes = 0;
  nanobind::object kept;  // the object at address `id`
};

struct ArrayView {
  std::byte* address = nullptr;
  size_t count = 0;
  uintptr_t id = 0;                    // of its elements
  const Elements* elements = nullptr;  // null: unknown
};

// Finds the size of a torch tensor's storage, which torch's C interfaces do not return: a storage
// may be cut or freed while tensors view it.
class TorchStorage {
 public:
  // Finds it in tensors with known storages; nothing if this torch has another layout.
  static std::optional<TorchStorage> find();
  bool holds(PyObject* tensor, const std::byte* address, size_t num_bytes) const;

 private:
  static constexpr size_t tensor_ = sizeof(PyObject) / sizeof(uintptr_t);

  TorchStorage(size_t storage, size_t begin, size_t size)
      : storage_(storage), begin_(begin), size_(size) {}

  // Indices of words: of a pointer in the tensor, of the other two in the storage that it points
  // to.
  size_t storage_, begin_, size_;
};

class ArrayReader {
 public:
  // Checks that numpy's arrays have the layout of its C interface.
  ArrayReader();

  // One thread at a time. Enables reading objects of exactly this type, if it is one of the above,
  // with elements of `kind`.
  void learn(nanobind::handle object, nanobind::object kind);
  // False unless the object has a known type and is C-contiguous, writable host memory.
  bool read(PyObject* object, ArrayView& view) const;

 private:
  static constexpr size_t most_elements = 64;  // types of them; each array looks for its own
  static constexpr size_t most_types = 64;
  using Export = int (*)(void* object, DLTensor* out);
  struct Type {
    PyTypeObject* type;
    Export export_tensor;  // null: of numpy
  };

  void learn_type(PyTypeObject* type);
  const Type* find_type(const PyTypeObject* type) const;
  const Elements* find_elements(uintptr_t id) const;

  nanobind::object ndarray_;           // none: another layout
  nanobind::object is_neg_, is_conj_;  // names
  // Readers take no lock: what stands below a count never changes, and none of it ever moves. Each
  // count is stored after what it counts, and the storage before the first type that needs it.
  std::optional<TorchStorage> storage_;
  std::array<Type, most_types> types_;
  std::array<Elements, most_elements> elements_;
  std::atomic<size_t> num_types_ = 0, num_elements_ = 0;
  std::vector<nanobind::object> kept_;
};

}  // namespace hccl
