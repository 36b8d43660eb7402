// Methods of Python classes that answer most calls without a Python frame.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstddef>
#include <exception>
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

// The object of Python: it hands the calls without an answer to `function`, and has its name,
// documentation and signature.
struct WrappedMethod {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  Answer* answer;  // owned

  static inline PyObject* method_type;  // of Python: the limited API lacks PyMethod_New

  static WrappedMethod& of(PyObject* self) { return *reinterpret_cast<WrappedMethod*>(self); }

  static PyObject* call(PyObject* self, PyObject* const* arguments, size_t flags,
                        PyObject* keywords) {
    try {
      auto num_arguments = static_cast<size_t>(PyVectorcall_NARGS(flags));
      nanobind::object result = of(self).answer->answer(arguments, num_arguments, keywords);
      if (result.is_valid()) return result.release().ptr();
    } catch (nanobind::python_error& error) {
      error.restore();
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return nullptr;
    }
    return PyObject_Vectorcall(of(self).function, arguments, flags, keywords);
  }

  static PyObject* bind_to(PyObject* self, PyObject* instance, PyObject*) {
    if (instance == nullptr) return Py_NewRef(self);
#ifdef Py_LIMITED_API
    return PyObject_CallFunctionObjArgs(method_type, self, instance, nullptr);
#else  // some 50 ns less
    return PyMethod_New(self, instance);
#endif
  }

  static PyObject* get_attribute(PyObject* self, PyObject* name) {
    PyObject* function = of(self).function;
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(function);
    if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0) {
      return PyObject_GenericGetAttr(self, name);
    }
    return PyObject_GetAttr(function, name);
  }

  static void free(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    Py_CLEAR(of(self).function);
    delete of(self).answer;
    PyObject_Free(self);
    Py_DECREF(type);
  }
};

// The type of wrapped methods; each module makes one.
inline nanobind::object make_wrapper_type() {
  nanobind::object bound = nanobind::module_::import_("types").attr("MethodType");
  WrappedMethod::method_type = bound.release().ptr();
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(WrappedMethod, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(WrappedMethod::bind_to)},
                         {Py_tp_getattro, reinterpret_cast<void*>(WrappedMethod::get_attribute)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(WrappedMethod::free)},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec = {
      "hccl_py.transport._core.WrappedMethod", sizeof(WrappedMethod), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  return nanobind::steal(PyType_FromSpec(&spec));
}

inline nanobind::object wrap_method(const nanobind::object& wrapper_type, nanobind::object function,
                                    std::unique_ptr<Answer> answer) {
  auto* type = reinterpret_cast<PyTypeObject*>(wrapper_type.ptr());
  nanobind::object made = nanobind::steal(PyType_GenericAlloc(type, 0));
  if (!made.is_valid()) throw nanobind::python_error();
  WrappedMethod& method = WrappedMethod::of(made.ptr());
  method.vectorcall = WrappedMethod::call;
  method.function = function.release().ptr();
  method.answer = answer.release();
  return made;
}

// The interned string; every equal one that is interned is the same object.
inline nanobind::object interned(const char* text) {
  return nanobind::steal(PyUnicode_InternFromString(text));
}

}  // namespace hccl
