// Reads numpy arrays and torch tensors by their C structures. An attribute of a tensor in Python
// takes as long as a tenth of a small call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace hccl {

// The structures of DLPack, whose layout is its interface (dmlc/dlpack, dlpack.h).
using DLTensor = nanobind::dlpack::dltensor;

bool is_contiguous(const DLTensor& tensor);

struct ArrayView {
  std::byte* address = nullptr;
  size_t count = 0;
  // Equal for arrays of one Python type only if their elements are of one type: numpy's dtype
  // object, or the number of DLPack's.
  uintptr_t element = 0;
};

// Where torch's tensors keep how long their storage is, which none of torch's C interfaces tells: a
// storage may be cut or freed while a tensor looks into it.
class TorchStorage {
 public:
  // Looks for it in tensors whose storages are known; nothing if this torch lays them out
  // otherwise.
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
  // Finds out whether numpy's arrays are laid out as its C interface has them.
  ArrayReader();

  // From now on reads objects of exactly this type, if it is one of those above.
  void learn(PyTypeObject* type);
  // False unless the object is of a type that was learnt, and C-contiguous memory of the host that
  // may be written.
  bool read(PyObject* object, ArrayView& view) const;

 private:
  using Export = int (*)(void* object, DLTensor* out);
  struct Type {
    PyTypeObject* type;
    Export export_tensor;  // null: of numpy
  };

  nanobind::object ndarray_;           // none: not laid out like that
  nanobind::object is_neg_, is_conj_;  // names
  std::optional<TorchStorage> storage_;
  std::vector<Type> types_;
  std::vector<nanobind::object> kept_;
};

}  // namespace hccl
