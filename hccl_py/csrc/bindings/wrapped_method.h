// Methods of Python classes that answer most calls without a Python frame.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>

namespace hccl {

// Answers some of the calls of a method. Called with the GIL held.
class Answer {
 public:
  virtual ~Answer() = default;
  // Null: the Python function has to do it. The first of the arguments by position is the object;
  // behind them stand those by name, of which `keywords` (null: none) has the names.
  virtual nanobind::object answer(PyObject* const* arguments, size_t num_arguments,
                                  PyObject* keywords) = 0;
};

// The type of wrapped methods; each module makes one.
nanobind::object make_wrapper_type();
// A method that hands the calls without an answer to `function`, and has its name, documentation
// and signature.
nanobind::object wrap_method(const nanobind::object& wrapper_type, nanobind::object function,
                             std::unique_ptr<Answer> answer);
// The interned string; every equal one that is interned is the same object.
nanobind::object interned(const char* text);

}  // namespace hccl
