// The Python that plans, connects and explains. It is found at run time: libpython is not linked,
// and a process that runs Python already uses that. Calls that move data do not come here.
#pragma once

#include <string>

#include "bindings/c_entry.h"
#include "libhccl/errors.h"

struct _object;
using PyObject = _object;

namespace hccl {

// The functions of the stable ABI that this library calls, by their names without prefix.
struct PythonApi {
  int (*Py_IsInitialized)();
  void (*Py_InitializeEx)(int install_signal_handlers);
  wchar_t* (*Py_DecodeLocale)(const char* text, size_t* size);
  void (*Py_SetProgramName)(const wchar_t* name);
  void* (*PyEval_SaveThread)();
  int (*PyGILState_Ensure)();
  void (*PyGILState_Release)(int state);
  PyObject* (*PyImport_ImportModule)(const char* name);
  PyObject* (*PyObject_GetAttrString)(PyObject* object, const char* name);
  PyObject* (*PyObject_CallFunction)(PyObject* callable, const char* format, ...);
  PyObject* (*PyObject_CallMethod)(PyObject* object, const char* name, const char* format, ...);
  PyObject* (*PyObject_Str)(PyObject* object);
  PyObject* (*PyTuple_GetItem)(PyObject* tuple, ptrdiff_t index);  // borrowed
  const char* (*PyUnicode_AsUTF8AndSize)(PyObject* text, ptrdiff_t* size);
  long long (*PyLong_AsLongLong)(PyObject* number);
  void* (*PyCapsule_GetPointer)(PyObject* capsule, const char* name);
  void (*PyErr_Fetch)(PyObject** type, PyObject** value, PyObject** traceback);
  void (*Py_IncRef)(PyObject* object);
  void (*Py_DecRef)(PyObject* object);
};

// Starts or finds Python, once; throws Error. Afterwards `api` and `entry` can be used.
void require_python();
extern PythonApi api;
extern const CEntry* entry;

// Holds the lock of Python in its scope.
class Gil {
 public:
  Gil() : state_(api.PyGILState_Ensure()) {}
  ~Gil() { api.PyGILState_Release(state_); }
  Gil(const Gil&) = delete;

 private:
  int state_;
};

// A reference; used with the lock held.
class Object {
 public:
  explicit Object(PyObject* owned = nullptr) : object_(owned) {}
  Object(Object&& other) noexcept : object_(other.release()) {}
  ~Object() { api.Py_DecRef(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  // Of a tuple.
  PyObject* item(ptrdiff_t index) const { return api.PyTuple_GetItem(object_, index); }
  long long number(ptrdiff_t index) const { return api.PyLong_AsLongLong(item(index)); }
  std::string text(ptrdiff_t index) const {
    return api.PyUnicode_AsUTF8AndSize(item(index), nullptr);
  }

 private:
  PyObject* object_;
};

Object answer_of(PyObject* returned);
PyObject* entry_function(const char* name);

// Calls a function of hccl_py/capi/entry.py with the lock held; throws what it answers as Error.
template <typename... Arguments>
Object call_python(const char* function, const char* format, Arguments... arguments) {
  Object callable(entry_function(function));
  return answer_of(api.PyObject_CallFunction(callable.get(), format, arguments...));
}

}  // namespace hccl
