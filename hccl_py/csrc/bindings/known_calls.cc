#include "bindings/known_calls.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/typing.h>
#include <structmember.h>

#include <algorithm>
#include <tuple>

#include "bindings/wrapped_method.h"

namespace nb = nanobind;

namespace hccl {

bool KnownCalls::describe(PyObject* method, PyObject* const* arguments, size_t num_arguments,
                          Key& key, Addresses& addresses) const {
  key.method = method;
  bool has_list = false;
  for (size_t i = 0; i < num_arguments; ++i) {
    PyObject* argument = arguments[i];
    if (PyLong_Check(argument)) {
      key.arguments[i].value = reinterpret_cast<uintptr_t>(argument);
      continue;
    }
    if (PyList_CheckExact(argument)) {
      if (has_list || !describe_list(argument, key.arguments[i], addresses)) return false;
      has_list = true;
      continue;
    }
    ArrayView view;
    if (!reader_.read(argument, view)) return false;
    key.arguments[i] = {Py_TYPE(argument), view.element, view.count};
    addresses.arrays[i] = view.address;
  }
  return true;
}

bool KnownCalls::describe_list(PyObject* list, Argument& description, Addresses& addresses) const {
  auto length = static_cast<size_t>(PyList_GET_SIZE(list));
  if (length == 0 || length > most_listed) return false;
  for (size_t i = 0; i < length; ++i) {
    PyObject* item = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
    ArrayView view;
    if (!reader_.read(item, view)) return false;
    Argument its{Py_TYPE(item), view.element, view.count, length};
    if (i == 0) description = its;
    if (!(its == description)) return false;
    addresses.listed[i] = view.address;
  }
  return true;
}

size_t KnownCalls::place_of(const Key& key) {
  constexpr uint64_t factor = 0x9e3779b97f4a7c15;  // of Fibonacci hashing
  uint64_t hash = reinterpret_cast<uintptr_t>(key.method);
  for (const Argument& argument : key.arguments) {
    hash = (hash ^ argument.value) * factor;
    hash = (hash ^ argument.count) * factor;
    hash = (hash ^ argument.num_listed) * factor;
  }
  return hash >> 58;
}

const KnownCalls::Call* KnownCalls::find(const Key& key) const {
  if (!calls_) return nullptr;
  const Call& call = (*calls_)[place_of(key)];
  return call.key == key ? &call : nullptr;
}

void KnownCalls::learn(const AnyTuple& call, nb::object prepared, nb::object blocks,
                       uint64_t data) {
  static_assert(capacity == 1 << (64 - 58), "see place_of");
  size_t num_arguments = call.size() - 1;
  if (num_arguments > most_arguments) throw std::invalid_argument("too many arguments");
  std::array<PyObject*, most_arguments> arguments{};
  nb::list kept;
  for (size_t i = 0; i < num_arguments; ++i) {
    nb::object argument = call[i + 1];
    arguments[i] = argument.ptr();
    if (PyLong_Check(argument.ptr())) {
      kept.append(argument);
      continue;
    }
    nb::object array = PyList_CheckExact(argument.ptr()) ? argument[0] : argument;
    reader_.learn(Py_TYPE(array.ptr()));
    kept.append(nb::getattr(array, "dtype", nb::none()));
  }
  PyObject* method = nb::object(call[0]).release().ptr();
  PyUnicode_InternInPlace(&method);
  kept.append(nb::steal(method));
  Key key;
  Addresses addresses;
  if (!describe(method, arguments.data(), num_arguments, key, addresses)) return;
  Call known{key, std::move(kept), std::move(prepared)};
  if (!blocks.is_none()) {
    std::tie(known.num_outputs, known.num_inputs, known.block_count) =
        nb::cast<std::tuple<size_t, size_t, size_t>>(blocks);
  }
  known.data = pointer(data);
  if (!calls_) calls_ = std::make_unique<std::array<Call, capacity>>();
  // What is replaced is released last: it may run code of Python.
  std::swap((*calls_)[place_of(key)], known);
}

namespace {

using AnyByAny = nb::typed<nb::dict, nb::any, nb::any>;

// Where objects of `type` keep an attribute that is one of its `__slots__`, in bytes from their
// start; 0 if it is none. To look an attribute up by its name takes 250 instructions, of 3,700 of a
// small call.
Py_ssize_t offset_of_slot(PyTypeObject* type, PyObject* name) {
  nb::object found = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  if (!found.is_valid()) PyErr_Clear();
  if (!found.is_valid() || Py_TYPE(found.ptr()) != &PyMemberDescr_Type) return 0;
  return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}

// A reference of its own; nothing if it is not set.
nb::object read_slot(PyObject* object, Py_ssize_t offset) {
  return nb::borrow(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset));
}

// The way of one Collectives to the engine.
struct FastPath {
  nb::object state;            // CommunicatorState
  Py_ssize_t core, timeout_s;  // its slots
  nb::object known;            // KnownCalls
  nb::object groups;  // CALLS of call_group.py: a call may have to be collected while there are any
  nb::object captures;  // CAPTURES of recording.py: or recorded
  nb::object errors;    // CallErrors
  nb::object work;      // the class Work, of calls in the background; None: calls block
  size_t rank;
};

// Answers the known calls of a method. The object's `_fast_path` is a FastPath, or the native Graph
// of a graph whose replay() this is.
class Remembered final : public Answer {
 public:
  explicit Remembered(const nb::object& function);
  nb::object answer(PyObject* const* arguments, size_t num_arguments) override;

 private:
  void note_type(PyTypeObject* type);

  nb::object name_;      // interned
  nb::object defaults_;  // of its last positional arguments: a tuple
  size_t most_arguments_;
  nb::object type_;           // of the last object whose method this was
  Py_ssize_t fast_path_ = 0;  // its slot
};

// What the functions below look up by name, and the types that they compare with.
struct Names {
  PyObject *fast_path, *core, *timeout_s;
  PyTypeObject *path_type, *graph_type, *engine_type;
};
Names names;

// The seconds of an ordinary number.
bool read_seconds(const nb::object& timeout, double& seconds) {
  if (!timeout.is_valid()) return false;
  if (PyFloat_CheckExact(timeout.ptr())) {
    seconds = PyFloat_AS_DOUBLE(timeout.ptr());
    return true;
  }
  if (!PyLong_CheckExact(timeout.ptr())) return false;
  seconds = PyLong_AsDouble(timeout.ptr());
  if (seconds != -1.0 || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

// Null: blocks share memory, and the function says whether they may.
RequestPtr request_of(Communicator& engine, size_t rank, const KnownCalls::Call& call,
                      double timeout_s, const KnownCalls::Addresses& addresses) {
  const auto& prepared = *nb::inst_ptr<Prepared>(call.prepared);
  if (call.num_outputs == 0) {
    std::byte* data = call.key.arguments[0].type ? addresses.arrays[0] : call.data;
    return data_request(engine, prepared, timeout_s, data);
  }
  auto blocks = [&](size_t argument, size_t num_blocks) -> EqualBlocks {
    bool is_list = call.key.arguments[argument].num_listed > 0;
    return {addresses.arrays[argument], num_blocks, call.block_count,
            is_list ? addresses.listed.data() : nullptr};
  };
  EqualBlocks input = blocks(1, call.num_inputs), output = blocks(0, call.num_outputs);
  size_t block_bytes = call.block_count * size_of(prepared.dtype);
  if (!are_apart(output, input, block_bytes, rank)) return nullptr;
  return equal_request(engine, prepared, timeout_s, input, output);
}

// The error of Python, thrown: what `make` of `maker` returns for a failure.
template <typename... Args>
[[noreturn]] void raise(nb::handle maker, const char* make, const CommunicatorFailed& failed,
                        Args&&... args) {
  nb::object error = maker.attr(make)(python_exception(failed), std::forward<Args>(args)...);
  PyException_SetCause(error.ptr(), nullptr);  // as `raise error from None`
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

// `graph`: a Graph of hccl_py/graphs/graph.py. Null: it needs what the function does.
nb::object answer_replay(PyObject* graph, nb::handle native) {
  try {
    return replay(native) ? nb::none() : nb::object();
  } catch (const CommunicatorFailed& failed) {
    raise(graph, "failed", failed);
  }
}

Remembered::Remembered(const nb::object& function)
    : name_(function.attr("__name__")),
      defaults_(function.attr("__defaults__")),
      most_arguments_(count_arguments(function) - 1) {
  if (most_arguments_ > KnownCalls::most_arguments) {
    throw std::invalid_argument("a method with too many arguments to be remembered");
  }
  if (defaults_.is_none()) defaults_ = nb::tuple();
  PyObject* name = name_.release().ptr();
  PyUnicode_InternInPlace(&name);
  name_ = nb::steal(name);
}

void Remembered::note_type(PyTypeObject* type) {
  fast_path_ = offset_of_slot(type, names.fast_path);
  type_ = nb::borrow(reinterpret_cast<PyObject*>(type));
}

// Null: the arguments belong to no known call, or this one needs what the function does.
nb::object Remembered::answer(PyObject* const* arguments, size_t num_arguments) {
  if (num_arguments == 0 || num_arguments - 1 > most_arguments_) return {};
  PyTypeObject* type = Py_TYPE(arguments[0]);
  if (reinterpret_cast<PyObject*>(type) != type_.ptr()) note_type(type);
  if (fast_path_ == 0) return {};
  nb::object found = read_slot(arguments[0], fast_path_);
  if (!found.is_valid()) return {};
  if (Py_TYPE(found.ptr()) == names.graph_type) return answer_replay(arguments[0], found);
  if (Py_TYPE(found.ptr()) != names.path_type) return {};
  const FastPath& path = *nb::inst_ptr<FastPath>(found);
  if (PyDict_GET_SIZE(path.groups.ptr()) + PyDict_GET_SIZE(path.captures.ptr()) != 0) return {};

  std::array<PyObject*, KnownCalls::most_arguments> all{};
  std::copy(arguments + 1, arguments + num_arguments, all.begin());
  auto num_defaults = static_cast<size_t>(PyTuple_GET_SIZE(defaults_.ptr()));
  for (size_t i = num_arguments - 1; i < most_arguments_; ++i) {
    if (i + num_defaults < most_arguments_) return {};  // the function says which is missing
    size_t index = i + num_defaults - most_arguments_;
    all[i] = PyTuple_GET_ITEM(defaults_.ptr(), static_cast<Py_ssize_t>(index));
  }
  const auto& known = *nb::inst_ptr<KnownCalls>(path.known);
  KnownCalls::Key key;
  KnownCalls::Addresses addresses;
  if (!known.describe(name_.ptr(), all.data(), most_arguments_, key, addresses)) return {};
  nb::object core = read_slot(path.state.ptr(), path.core);
  if (!core.is_valid() || Py_TYPE(core.ptr()) != names.engine_type) return {};
  nb::object timeout = read_slot(path.state.ptr(), path.timeout_s);
  double timeout_s = 0;
  if (!read_seconds(timeout, timeout_s)) return {};
  const KnownCalls::Call* call = known.find(key);
  if (call == nullptr) return {};

  nb::object prepared = call->prepared;
  // Another thread may change a list while the call runs.
  std::array<nb::object, KnownCalls::most_arguments> arrays;
  for (size_t i = 0; i < most_arguments_; ++i) {
    bool is_list = key.arguments[i].num_listed > 0;
    if (is_list) arrays[i] = nb::tuple(nb::handle(all[i]));
  }
  try {
    auto& engine = *nb::inst_ptr<Communicator>(core);
    RequestPtr request = request_of(engine, path.rank, *call, timeout_s, addresses);
    if (request == nullptr) return {};
    if (path.work.is_none()) {
      run(engine, std::move(request));
      return nb::none();
    }
    nb::list buffers;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != nullptr) buffers.append(arrays[i].is_valid() ? arrays[i] : nb::borrow(all[i]));
    }
    Work work = start(core, std::move(request), std::move(buffers));
    return path.work(std::move(work), path.errors, timeout, prepared);
  } catch (const CommunicatorFailed& failed) {
    raise(path.errors, "of_call", failed, timeout, prepared);
  }
}

}  // namespace

void bind_known_calls(nb::module_& module, const nb::object& wrapper_type) {
  nb::class_<KnownCalls>(module, "KnownCalls")
      .def(nb::init<>())
      .def("learn", &KnownCalls::learn, nb::arg("call"), nb::arg("prepared"),
           nb::arg("blocks") = nb::none(), nb::arg("data") = 0)
      .def("clear", &KnownCalls::clear);
  nb::class_<FastPath>(module, "FastPath")
      .def(
          "__init__",
          [](FastPath* self, nb::object state, nb::handle_t<KnownCalls> known, AnyByAny groups,
             AnyByAny captures, nb::object errors, nb::object work) {
            Py_ssize_t core = offset_of_slot(Py_TYPE(state.ptr()), names.core);
            Py_ssize_t timeout_s = offset_of_slot(Py_TYPE(state.ptr()), names.timeout_s);
            if (core == 0 || timeout_s == 0) throw nb::type_error("state: expected its slots");
            auto rank = nb::cast<size_t>(state.attr("rank"));
            new (self) FastPath{std::move(state),
                                core,
                                timeout_s,
                                nb::borrow(known),
                                std::move(groups),
                                std::move(captures),
                                std::move(errors),
                                std::move(work),
                                rank};
          },
          nb::arg("state"), nb::arg("known"), nb::arg("groups"), nb::arg("captures"),
          nb::arg("errors"), nb::arg("work").none());
  auto* graph_type = reinterpret_cast<PyTypeObject*>(module.attr("Graph").ptr());
  names = {PyUnicode_InternFromString("_fast_path"),
           PyUnicode_InternFromString("core"),
           PyUnicode_InternFromString("timeout_s"),
           reinterpret_cast<PyTypeObject*>(nb::type<FastPath>().ptr()),
           graph_type,
           reinterpret_cast<PyTypeObject*>(nb::type<Communicator>().ptr())};
  module.attr("Method") = nb::type_var("Method");
  module.def(
      "remembered",
      [wrapper_type](nb::object method) {
        auto answer = std::make_unique<Remembered>(method);
        return wrap_method(wrapper_type, std::move(method), std::move(answer));
      },
      nb::arg("method"), nb::sig("def remembered(method: Method) -> Method"));
}

}  // namespace hccl
