#include "libhccl/python.h"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <clocale>
#include <fstream>
#include <mutex>
#include <vector>

namespace hccl {

PythonApi api;
const CEntry* entry;

namespace {

std::mutex starting;
PyObject* module;  // hccl_py.capi.entry

struct Name {
  const char* symbol;
  void* function;
};

#define HCCL_NAME(symbol) \
  Name { #symbol, &api.symbol }
const Name names[] = {HCCL_NAME(Py_IsInitialized),
                      HCCL_NAME(Py_InitializeEx),
                      HCCL_NAME(Py_DecodeLocale),
                      HCCL_NAME(Py_SetProgramName),
                      HCCL_NAME(PyEval_SaveThread),
                      HCCL_NAME(PyGILState_Ensure),
                      HCCL_NAME(PyGILState_Release),
                      HCCL_NAME(PyImport_ImportModule),
                      HCCL_NAME(PyObject_GetAttrString),
                      HCCL_NAME(PyObject_CallFunction),
                      HCCL_NAME(PyObject_CallMethod),
                      HCCL_NAME(PyObject_Str),
                      HCCL_NAME(PyTuple_GetItem),
                      HCCL_NAME(PyUnicode_AsUTF8AndSize),
                      HCCL_NAME(PyLong_AsLongLong),
                      HCCL_NAME(PyCapsule_GetPointer),
                      HCCL_NAME(PyErr_Fetch),
                      HCCL_NAME(Py_IncRef),
                      HCCL_NAME(Py_DecRef)};
#undef HCCL_NAME

[[noreturn]] void fail(std::string text) { throw Error{hcclSystemError, std::move(text)}; }

void bind(void* library) {
  for (const Name& name : names) {
    void* found = dlsym(library, name.symbol);
    if (found == nullptr) fail(std::string("the Python of this process has no ") + name.symbol);
    *static_cast<void**>(name.function) = found;
  }
}

std::string parent(const std::string& path, int levels = 1) {
  std::string found = path;
  while (levels-- > 0) found = found.substr(0, found.find_last_of('/'));
  return found;
}

std::string real_path(const std::string& path) {
  char found[PATH_MAX];
  return realpath(path.c_str(), found) != nullptr ? found : path;
}

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr ? value : "";
}

// The folder of packages that this library is installed in: it is hccl_py/capi/lib/ of it.
std::string packages() {
  Dl_info info;
  if (dladdr(&starting, &info) == 0) fail("this library does not know where it is installed");
  return parent(real_path(info.dli_fname), 4);
}

// The interpreter of the environment with these packages; "": none stands beside them.
std::string interpreter(const std::string& packages) {
  std::string given = variable("HCCL_PYTHON"), found = parent(packages, 3) + "/bin/python3";
  if (!given.empty()) return given;
  return access(found.c_str(), X_OK) == 0 ? found : "";
}

void* load_library(const std::string& packages, const std::string& python) {
  std::string version = packages.substr(parent(packages).find_last_of('/') + 1);
  version = version.substr(0, version.find('/'));  // python3.12
  std::vector<std::string> tried = {variable("HCCL_PYTHON_LIBRARY")};
  if (tried[0].empty()) {
    tried.clear();
    for (const char* suffix : {".so.1.0", "t.so.1.0", ".so"}) {
      std::string file = "lib" + version + suffix;
      if (!python.empty()) tried.push_back(parent(real_path(python), 2) + "/lib/" + file);
      tried.push_back(parent(packages, 3) + "/lib/" + file);
      tried.push_back(file);
    }
  }
  for (const std::string& path : tried) {
    // Global: the compiled modules of Python find its functions there.
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  fail("found no shared library of Python that fits " + packages + "; the last of " +
       std::to_string(tried.size()) + " tried is " + tried.back() +
       ". Install it (Debian: libpython3-dev; conda and uv have it), or name it in "
       "HCCL_PYTHON_LIBRARY, and the interpreter with hccl-py in HCCL_PYTHON");
}

std::string fetched_error() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  api.PyErr_Fetch(&type, &value, &traceback);
  Object owned_type(type), owned_value(value), owned_traceback(traceback);
  Object text(value != nullptr ? api.PyObject_Str(value) : nullptr);
  const char* found =
      text.get() != nullptr ? api.PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  return found != nullptr ? found : "an error of Python without text";
}

// As a user's `python3` would start, but without its signal handlers and its locale.
void start_interpreter(const std::string& packages, const std::string& python) {
  const char* locale = std::setlocale(LC_CTYPE, nullptr);
  std::string before = locale != nullptr ? locale : "C";
  if (!python.empty()) api.Py_SetProgramName(api.Py_DecodeLocale(python.c_str(), nullptr));
  api.Py_InitializeEx(0);
  std::setlocale(LC_CTYPE, before.c_str());
  Object site(api.PyImport_ImportModule("site"));
  if (site.get() != nullptr) {
    Object added(api.PyObject_CallMethod(site.get(), "addsitedir", "(s)", packages.c_str()));
  }
  api.PyEval_SaveThread();
}

// A module of Python takes over SIGINT if nothing handles it. In this scope something does, which
// ends the program as before.
class KeptInterrupt {
 public:
  KeptInterrupt() {
    struct sigaction ends{};
    sigaction(SIGINT, nullptr, &before_);
    ends.sa_handler = [](int number) {
      signal(number, SIG_DFL);
      raise(number);
    };
    if (before_.sa_handler == SIG_DFL) sigaction(SIGINT, &ends, nullptr);
  }
  ~KeptInterrupt() {
    if (before_.sa_handler == SIG_DFL) sigaction(SIGINT, &before_, nullptr);
  }
  KeptInterrupt(const KeptInterrupt&) = delete;

 private:
  struct sigaction before_;
};

// Threads of Python must end before the libraries that they use. Those have registered their ends
// already, and so end later.
void leave() {
  Gil gil;
  try {
    call_python("leave", "()");
  } catch (const Error& error) {
    report(error);
  }
}

void import_entry(bool is_ours, const std::string& packages) {
  Gil gil;
  module = api.PyImport_ImportModule("hccl_py.capi.entry");
  if (module == nullptr) {
    fail("Python cannot import hccl_py.capi of " + packages + ": " + fetched_error());
  }
  Object capsule = call_python("begin", "(ii)", int(is_ours), int(CEntry::current));
  entry = static_cast<const CEntry*>(api.PyCapsule_GetPointer(capsule.get(), CEntry::name));
  if (is_ours) atexit(leave);
}

}  // namespace

void require_python() {
  std::lock_guard guard(starting);
  if (entry != nullptr) return;
  std::string where = packages();
  KeptInterrupt kept;
  bool is_ours = false;
  if (module == nullptr) {
    bool is_loaded = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
    std::string python = interpreter(where);
    bind(is_loaded ? RTLD_DEFAULT : load_library(where, python));
    is_ours = api.Py_IsInitialized() == 0;
    if (is_ours) start_interpreter(where, python);
  }
  import_entry(is_ours, where);
}

PyObject* entry_function(const char* name) {
  PyObject* function = api.PyObject_GetAttrString(module, name);
  if (function == nullptr) throw Error{hcclInternalError, fetched_error()};
  return function;
}

Object answer_of(PyObject* returned) {
  if (returned == nullptr) throw Error{hcclInternalError, fetched_error()};
  Object answer(returned);
  auto code = static_cast<hcclResult_t>(answer.number(0));
  if (code != hcclSuccess) throw Error{code, answer.text(1)};
  PyObject* value = answer.item(1);
  api.Py_IncRef(value);
  return Object(value);
}

}  // namespace hccl
