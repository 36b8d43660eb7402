// Errors of the system as OSError and MemoryError, in every extension module.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <system_error>

namespace hccl {

inline void raise_system_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::system_error& error) {
    bool is_memory = error.code() == std::errc::not_enough_memory;
    nanobind::object kind = nanobind::borrow(is_memory ? PyExc_MemoryError : PyExc_OSError);
    PyErr_SetObject(kind.ptr(), nanobind::make_tuple(error.code().value(), error.what()).ptr());
  }
}

}  // namespace hccl
