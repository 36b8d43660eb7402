// The options that torch makes for every call, read where torch keeps them: an attribute of one
// takes as long as the engine's part of a small call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace hccl {

class TorchOptions {
 public:
  // Finds the fields in objects of `type` with known values; nothing if this torch has another
  // layout. `has_op`, `has_root`: it has these fields.
  static std::optional<TorchOptions> find(const nanobind::object& type,
                                          const nanobind::object& unset_timeout, bool has_op,
                                          bool has_root);

  // Of objects of exactly this type.
  bool has_timeout(PyObject* options) const { return read<int64_t>(options, timeout_) != unset_; }
  bool is_async(PyObject* options) const { return read<uint8_t>(options, async_) != 0; }
  Py_ssize_t op(PyObject* options) const { return read<uint8_t>(options, op_); }
  Py_ssize_t root(PyObject* options) const { return read<int64_t>(options, root_); }

 private:
  // Pybind11 has the address of the object of C++ behind the head of Python's.
  static const std::byte* begin(PyObject* options) {
    const auto* head = reinterpret_cast<const std::byte*>(options);
    return *reinterpret_cast<const std::byte* const*>(head + sizeof(PyObject));
  }
  template <typename T>
  static T read(PyObject* options, size_t offset) {
    T value;
    std::memcpy(&value, begin(options) + offset, sizeof value);
    return value;
  }
  template <typename T>
  static size_t find_field(const nanobind::object (&two)[2], const char* name,
                           const nanobind::object (&values)[2], const T (&raw)[2]);

  size_t timeout_ = 0, async_ = 0, op_ = 0, root_ = 0;  // offsets in bytes
  int64_t unset_ = 0;                                   // the value without a timeout
};

}  // namespace hccl
