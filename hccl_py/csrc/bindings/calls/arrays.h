// Reads numpy arrays and torch tensors by their C structures. An attribute of a tensor in Python
// takes as long as a tenth of a small call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
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
  nanobind::object kept;  // what `id` is the address of
};

struct ArrayView {
  std::byte* address = nullptr;
  size_t count = 0;
  uintptr_t id = 0;                    // of its elements
  const Elements* elements = nullptr;  // null: not learnt
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

  // From now on reads objects of exactly this one's type, if it is one of those above, and knows
  // its elements as those of `kind`.
  void learn(nanobind::handle object, nanobind::object kind);
  // False unless the object is of a type that was learnt, and C-contiguous memory of the host that
  // may be written.
  bool read(PyObject* object, ArrayView& view) const;

 private:
  static constexpr size_t most_elements = 64;  // types of them; each array looks for its own
  using Export = int (*)(void* object, DLTensor* out);
  struct Type {
    PyTypeObject* type;
    Export export_tensor;  // null: of numpy
  };

  void learn_type(PyTypeObject* type);
  const Elements* find_elements(uintptr_t id) const;

  nanobind::object ndarray_;           // none: not laid out like that
  nanobind::object is_neg_, is_conj_;  // names
  std::optional<TorchStorage> storage_;
  std::vector<Type> types_;
  std::array<Elements, most_elements> elements_;  // none ever moves
  size_t num_elements_ = 0;
  std::vector<nanobind::object> kept_;
};

}  // namespace hccl
