#include "bindings/wrapped_method.h"

#include <structmember.h>

#include <exception>

namespace nb = nanobind;

namespace hccl {

namespace {

struct WrappedMethod {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  Answer* answer;  // owned
};

WrappedMethod& wrapped(PyObject* self) { return *reinterpret_cast<WrappedMethod*>(self); }

PyObject* call(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* keywords) {
  WrappedMethod& method = wrapped(self);
  try {
    auto num_arguments = static_cast<size_t>(PyVectorcall_NARGS(flags));
    nb::object result = method.answer->answer(arguments, num_arguments, keywords);
    if (result.is_valid()) return result.release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return PyObject_Vectorcall(method.function, arguments, flags, keywords);
}

PyObject* bind_to(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

PyObject* get_attribute(PyObject* self, PyObject* name) {
  PyObject* function = wrapped(self).function;
  if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(function);
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0) {
    return PyObject_GenericGetAttr(self, name);
  }
  return PyObject_GetAttr(function, name);
}

void free_method(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(wrapped(self).function);
  delete wrapped(self).answer;
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

nb::object make_wrapper_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(WrappedMethod, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                         {Py_tp_descr_get, reinterpret_cast<void*>(bind_to)},
                         {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                         {Py_tp_dealloc, reinterpret_cast<void*>(free_method)},
                         {Py_tp_members, members},
                         {0, nullptr}};
  PyType_Spec spec = {
      "hccl_py.transport._core.WrappedMethod", sizeof(WrappedMethod), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  return nb::steal(PyType_FromSpec(&spec));
}

nb::object wrap_method(const nb::object& wrapper_type, nb::object function,
                       std::unique_ptr<Answer> answer) {
  auto* type = reinterpret_cast<PyTypeObject*>(wrapper_type.ptr());
  nb::object made = nb::steal(type->tp_alloc(type, 0));
  if (!made.is_valid()) throw nb::python_error();
  WrappedMethod& method = wrapped(made.ptr());
  method.vectorcall = call;
  method.function = function.release().ptr();
  method.answer = answer.release();
  return made;
}

nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

}  // namespace hccl
