// Registered memory in Python: the arena of the process, and pieces of it that live as long as what
// is made of them. And where arrays, tensors and DLPack capsules have their memory.
#include "bindings/bindings.h"
#include "bindings/calls/arrays.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "base/memory/arena.h"
#include "base/memory/memory_watch.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// Allocated memory of the arena, released with this object.
struct Region {
  Region(std::shared_ptr<Arena> its_arena, size_t its_bytes)
      : arena(std::move(its_arena)), num_bytes(its_bytes), address(arena->allocate(num_bytes)) {}
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    if (shown_at != nullptr) arena->withdraw(shown_at);
    arena->release(address);
  }

  void show(uint64_t at) {
    arena->show_at(pointer(at), address, num_bytes);
    shown_at = pointer(at);
  }

  const std::shared_ptr<Arena> arena;
  const size_t num_bytes;
  std::byte* const address;
  std::byte* shown_at = nullptr;
};

// The array keeps the region alive.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> as_array(nb::handle_t<Region> self) {
  const Region& region = nb::cast<const Region&>(self);
  return {region.address, {region.num_bytes}, nb::borrow(self)};
}

// The structures of DLPack, whose layout is its interface (dmlc/dlpack, dlpack.h). An unversioned
// capsule begins with its tensor.
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
constexpr uint64_t read_only_flag = 1;
constexpr uint32_t known_major = 1;

// The exporter's values are trusted, except null pointers and ranges beyond the address space.
void check(const DLTensor& tensor) {
  if (tensor.ndim < 0) throw std::invalid_argument("a capsule with less than no dimensions");
  const uint64_t item_bytes = (uint64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  uint64_t num_bytes = item_bytes > 0 ? item_bytes : 1;
  bool is_empty = false;
  bool is_too_long = false;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) throw std::invalid_argument("a capsule with a negative length");
    if (tensor.shape[i] == 0) is_empty = true;
    const auto length = static_cast<uint64_t>(tensor.shape[i]);
    is_too_long |= __builtin_mul_overflow(num_bytes, length, &num_bytes);
  }
  if (is_empty) return;
  if (tensor.data == nullptr) throw std::invalid_argument("a capsule of a null pointer");
  uint64_t end = reinterpret_cast<uintptr_t>(tensor.data);
  is_too_long |= __builtin_add_overflow(end, tensor.byte_offset, &end);
  is_too_long |= __builtin_add_overflow(end, num_bytes, &end);
  if (is_too_long) throw std::invalid_argument("a capsule of more than all memory");
}

// Address, shape, whether it is C-contiguous, whether it is known to be read-only, the element type
// (code, bits, lanes), and the type of the device.
using Shape = nb::typed<nb::tuple, int64_t, nb::ellipsis>;
using View = std::tuple<uint64_t, Shape, bool, bool, std::tuple<int, int, int>, int>;

View describe(const DLTensor& tensor, bool read_only) {
  check(tensor);
  nb::list shape;
  for (int32_t i = 0; i < tensor.ndim; ++i) shape.append(tensor.shape[i]);
  return {reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset,
          nb::tuple(shape),
          is_contiguous(tensor),
          read_only,
          {tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes},
          tensor.device.device_type};
}

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<Arena>(module, "Arena")
      .def_static("create", &Arena::create)
      .def("fd", &Arena::fd)
      .def("num_bytes", &Arena::num_bytes)
      .def("num_allocated", &Arena::num_allocated)
      .def("unavailable", &Arena::unavailable)
      .def("holds", [](const Arena& arena, uint64_t address, size_t num_bytes) {
        return arena.offset_of(pointer(address), num_bytes).has_value();
      });
  nb::class_<MemoryWatch>(module, "MemoryWatch")
      .def_static("start", &MemoryWatch::start, nb::rv_policy::reference)
      .def("unavailable", &MemoryWatch::unavailable);
  nb::class_<Region>(module, "Region")
      .def(nb::init<std::shared_ptr<Arena>, size_t>(), Released())
      .def("address", [](const Region& r) { return reinterpret_cast<uint64_t>(r.address); })
      .def("array", &as_array)
      .def("is_retired", [](const Region& r) { return r.arena->is_retired(r.address); })
      .def("show_at", &Region::show, Released());
  nb::class_<ArrayReader>(module, "ArrayReader")
      .def(nb::init<>())
      .def("learn", &ArrayReader::learn, nb::lock_self())
      // Address, count, and the ElementType; None if that is unknown.
      .def(
          "read",
          [](const ArrayReader& r,
             nb::handle object) -> std::optional<std::tuple<uint64_t, size_t, nb::object>> {
            ArrayView view;
            if (!r.read(object.ptr(), view)) return std::nullopt;
            nb::object kind = view.elements ? view.elements->kind : nb::none();
            return {{reinterpret_cast<uintptr_t>(view.address), view.count, std::move(kind)}};
          },
          nb::arg().none());
  // The capsule owns the memory, which lives as long.
  module.def("dlpack_view", [](nb::handle capsule) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
      void* found = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
      return describe(*static_cast<DLTensor*>(found), false);
    }
    void* found = PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned");
    if (found == nullptr) throw nb::python_error();
    auto* managed = static_cast<DLManagedTensorVersioned*>(found);
    if (managed->major != known_major) {
      throw std::invalid_argument("a DLPack capsule of an unknown version");
    }
    return describe(managed->tensor, (managed->flags & read_only_flag) != 0);
  });
}

}  // namespace hccl
