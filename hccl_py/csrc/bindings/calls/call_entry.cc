#include "bindings/calls/call_entry.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/typing.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/calls/wrapped_method.h"

namespace nb = nanobind;

namespace hccl {

// A partially read call.
struct CallEntry::Shape {
  RequestPtr request;  // what it reads and writes, counted in elements
  const Elements* elements = nullptr;
  size_t count = 0;
  int root = -1;
  uint8_t op = 0;
  bool even = true;
  std::array<nb::object, 2> lists = {};  // as tuples: another thread may change a list meanwhile
};

namespace {

constexpr double longest_s = 1e8;  // LONGEST_S of transport/arguments.py

bool is_given(PyObject* object) { return object != nullptr && object != Py_None; }

// Whether it is a number in 0..limit-1; members of an IntEnum are numbers.
template <typename T>
bool read_number(PyObject* object, size_t limit, T& number) {
  if (!PyLong_Check(object)) return false;
  Py_ssize_t value = PyLong_AsSsize_t(object);
  if (value == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  if (value < 0 || static_cast<size_t>(value) >= limit) return false;
  number = static_cast<T>(value);
  return true;
}

// The blocks of a rank on each side; at_root: all blocks on the root, none elsewhere.
enum class Blocks { none, one, all, at_root };

struct Sides {
  bool has_root;
  Blocks input, output;  // none: a collective on one buffer
};

Sides sides_of(Collective collective) {
  switch (collective) {
    case Collective::broadcast:
    case Collective::reduce: return {true, Blocks::none, Blocks::none};
    case Collective::all_gather: return {false, Blocks::one, Blocks::all};
    case Collective::reduce_scatter: return {false, Blocks::all, Blocks::one};
    case Collective::all_to_all: return {false, Blocks::all, Blocks::all};
    case Collective::gather: return {true, Blocks::one, Blocks::at_root};
    case Collective::scatter: return {true, Blocks::at_root, Blocks::one};
    case Collective::all_reduce:
    case Collective::barrier:
    case Collective::send:
    case Collective::recv: break;
  }
  return {false, Blocks::none, Blocks::none};
}

// Throws the Python error that `make` of `maker` returns for a failure.
template <typename... Args>
[[noreturn]] void raise(nb::handle maker, const char* make, const CommunicatorFailed& failed,
                        Args&&... args) {
  nb::object error = maker.attr(make)(python_exception(failed), std::forward<Args>(args)...);
  PyException_SetCause(error.ptr(), nullptr);  // as `raise error from None`
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace

bool CallEntry::is_overridden(Collective collective) const {
  if (NB_DICT_GET_SIZE(groups.ptr()) + NB_DICT_GET_SIZE(captures.ptr()) != 0) {
    return true;
  }
  bool is_sum = collective == Collective::all_reduce || collective == Collective::reduce_scatter;
  return is_sum && !gain.is_none() && nb::cast<bool>(gain.attr("is_open"));
}

std::optional<double> CallEntry::timeout_of(PyObject* given) const {
  if (!is_given(given)) return state->timeout_s.load(std::memory_order_relaxed);
  if (!PyFloat_CheckExact(given) && !PyLong_CheckExact(given)) return {};
  double seconds = PyFloat_AsDouble(given);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) PyErr_Clear();
  bool is_usual = seconds >= 0 && seconds <= longest_s;
  return is_usual ? std::optional(seconds) : std::nullopt;
}

bool CallEntry::read(PyObject* array, Shape& shape, std::vector<Span>& to) const {
  ArrayView view;
  if (!is_given(array) || !reader->read(array, view) || view.elements == nullptr) {
    return false;
  }
  if (shape.elements != nullptr && shape.elements->kind.ptr() != view.elements->kind.ptr()) {
    return false;
  }
  shape.elements = view.elements;
  to.push_back({view.address, view.count});
  return true;
}

// A list, or one buffer of equal blocks. `given` becomes a tuple if it was a list.
bool CallEntry::read_blocks(PyObject*& given, Shape& shape, std::vector<Span>& to) const {
  size_t n = world_size;
  if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
    if (!read(given, shape, to) || to[0].count % n != 0) return false;
    size_t count = to[0].count / n, step = count * shape.elements->item_bytes;
    to[0].count = count;
    for (size_t i = 1; i < n; ++i) to.push_back({to[0].address + i * step, count});
    return true;
  }
  nb::object& listed = shape.lists[shape.lists[0].is_valid() ? 1 : 0];
  listed = nb::tuple(nb::handle(given));
  given = listed.ptr();
  if (static_cast<size_t>(NB_TUPLE_GET_SIZE(given)) != n) return false;
  for (size_t i = 0; i < n; ++i) {
    if (!read(NB_TUPLE_GET_ITEM(given, static_cast<Py_ssize_t>(i)), shape, to)) return false;
  }
  return true;
}

// For a collective on one buffer, in place or not.
bool CallEntry::read_data(Collective collective, const GivenCall& given, Shape& shape) const {
  Call& call = shape.request->call;
  bool is_root = shape.root == static_cast<int>(rank);
  if (collective == Collective::broadcast && !is_root) {
    if (!read(is_given(given.output) ? given.output : given.input, shape, call.output)) {
      return false;
    }
  } else if (!is_given(given.output) || (collective == Collective::reduce && !is_root)) {
    if (!read(given.input, shape, call.output)) return false;
  } else {
    if (!read(given.input, shape, call.input) || !read(given.output, shape, call.output)) {
      return false;
    }
    const Span &from = call.input[0], &to = call.output[0];
    bool is_same = from.address == to.address;
    if (from.count != to.count) return false;
    if (!is_same && !are_apart(call.output, call.input, shape.elements->item_bytes, 0, false)) {
      return false;
    }
  }
  shape.count = call.output[0].count;
  return true;
}

bool CallEntry::read_all_blocks(Collective collective, GivenCall& given, Shape& shape) const {
  Call& call = shape.request->call;
  Sides sides = sides_of(collective);
  bool is_root = shape.root == static_cast<int>(rank);
  auto read_side = [&](Blocks blocks, PyObject*& object, std::vector<Span>& to) {
    bool has_any = blocks != Blocks::at_root || is_root;
    if (!has_any || !is_given(object)) return has_any == is_given(object);
    return blocks == Blocks::one ? read(object, shape, to) : read_blocks(object, shape, to);
  };
  if (!read_side(sides.input, given.input, call.input)) return false;
  if (!read_side(sides.output, given.output, call.output)) return false;
  auto own = [&](Blocks blocks, const std::vector<Span>& side) {
    return side[blocks == Blocks::one ? 0 : rank].count;
  };
  if (!call.input.empty() && !call.output.empty()) {
    size_t count = own(sides.input, call.input);
    if (count != own(sides.output, call.output)) return false;
    auto is_as_long = [count](const Span& block) { return block.count == count; };
    if (collective == Collective::reduce_scatter) {
      if (!std::all_of(call.input.begin(), call.input.end(), is_as_long)) return false;
      shape.count = count * world_size;
    } else if (collective == Collective::all_gather) {
      for (const Span& block : call.output) shape.count += block.count;
      shape.even = std::all_of(call.output.begin(), call.output.end(), is_as_long);
    } else if (collective == Collective::all_to_all) {
      // A list with equal blocks here may be uneven elsewhere; one buffer has equal blocks on every
      // rank.
      shape.even = !shape.lists[0].is_valid();
      shape.count = shape.even ? count * world_size : 0;
    }
  }
  return are_apart(call.output, call.input, shape.elements->item_bytes, rank,
                   collective != Collective::all_to_all);
}

// Fills the request of a collective; returns its Prepared. Null: Python must handle it.
nb::object CallEntry::prepare(Collective collective, GivenCall& given, Shape& shape) const {
  Sides sides = sides_of(collective);
  bool has_right_root = !sides.has_root || (PyLong_CheckExact(given.root) &&
                                            read_number(given.root, world_size, shape.root));
  if (!has_right_root) return {};
  if (given.op != nullptr && !read_number(given.op, num_reduce_ops, shape.op)) return {};
  nb::handle kind = byte;
  if (collective == Collective::barrier) {
    shape.count = 1;
  } else {
    bool is_read = sides.input == Blocks::none ? read_data(collective, given, shape)
                                               : read_all_blocks(collective, given, shape);
    if (!is_read) return {};
    kind = shape.elements->kind;
  }
  auto& cache = *nb::inst_ptr<PlanCache>(plans);
  nb::object prepared = cache.find(
      {kind.ptr(), shape.count, shape.root, collective, shape.op, cache.compression(), shape.even});
  size_t unit_bytes = shape.elements ? shape.elements->item_bytes : 1;
  complete(*shape.request, *nb::inst_ptr<Prepared>(prepared), unit_bytes);
  return prepared;
}

// The same for a send or recv; returns its Transfer.
nb::object CallEntry::prepare_transfer(Collective collective, const GivenCall& given,
                                       Shape& shape) const {
  Transfer transfer{collective == Collective::send, any_rank, 0, 0};
  bool is_any = !transfer.sends && given.peer == Py_None;
  if (!is_any &&
      !(PyLong_CheckExact(given.peer) && read_number(given.peer, world_size, transfer.peer))) {
    return {};
  }
  if (given.tag != nullptr) {
    if (!PyLong_Check(given.tag)) return {};
    transfer.tag = PyLong_AsUnsignedLongLong(given.tag);
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return {};
    }
  }
  std::vector<Span>& data = shape.request->call.output;
  if (!read(given.input, shape, data)) return {};
  transfer.num_bytes = data[0].count * shape.elements->item_bytes;
  complete(*shape.request, transfer, data[0].address);
  data.clear();
  nb::object peer = is_any ? nb::object(nb::none()) : nb::object(nb::int_(transfer.peer));
  return this->transfer(transfer.sends, peer, transfer.tag, transfer.num_bytes);
}

void CallEntry::compare(Collective collective, const GivenCall& given,
                        const Request& request) const {
  nb::list values;
  for (PyObject* value :
       {given.output, given.input, given.op, given.root, given.peer, given.tag, given.timeout_s}) {
    values.append(value != nullptr ? nb::handle(value) : nb::handle(Py_None));
  }
  std::string name = collective_names[static_cast<size_t>(collective)];
  nb::object expected = oracle(name, values);
  if (are_alike(request, *nb::inst_ptr<UnsubmittedCall>(expected)->request)) return;
  throw std::logic_error("HCCL_VERIFY: the plan cache has another " + name +
                         " than Python's checks make of the same arguments");
}

nb::object CallEntry::call(Collective collective, GivenCall& given) {
  nb::object engine = state->engine();
  if (engine.is_none() || is_overridden(collective) || is_given(given.compression)) return {};
  std::optional<double> timeout_s = timeout_of(given.timeout_s);
  if (!timeout_s) return {};
  auto& communicator = *nb::inst_ptr<Communicator>(engine);
  Shape shape{take_request(communicator)};
  nb::object call = collective >= Collective::send ? prepare_transfer(collective, given, shape)
                                                   : prepare(collective, given, shape);
  if (!call.is_valid()) return {};
  begin(*shape.request, *timeout_s);
  if (!oracle.is_none()) compare(collective, given, *shape.request);
  try {
    if (work.is_none()) {
      run(communicator, std::move(shape.request));
      return nb::none();
    }
    auto or_none = [](PyObject* object) { return object ? nb::borrow(object) : nb::none(); };
    nb::object buffers = nb::make_tuple(or_none(given.output), or_none(given.input));
    Work started = start(engine, std::move(shape.request), std::move(buffers));
    return work(std::move(started), errors, *timeout_s, call);
  } catch (const CommunicatorFailed& failed) {
    raise(errors, "of_call", failed, *timeout_s, call);
  }
}

namespace {

PyTypeObject *entry_type, *graph_type;
descrgetfunc read_slot;  // of the descriptors of slots

// A method of Collectives, or Graph.replay. Its object has a slot `entry`: a CallEntry, or a native
// Graph.
class EnteringMethod final : public Answer {
 public:
  explicit EnteringMethod(const nb::object& function);
  nb::object answer(PyObject* const* arguments, size_t num_arguments, PyObject* keywords) override;

 private:
  using Field = PyObject* GivenCall::*;

  nb::handle slot_of(PyObject* type);
  bool assign(PyObject* const* arguments, size_t num_arguments, PyObject* keywords,
              GivenCall& given) const;

  Collective collective_ = Collective::barrier;
  std::vector<nb::object> names_;  // of the parameters, interned; the positional ones first
  std::vector<Field> fields_;
  size_t num_positional_, num_required_;
  nb::ft_mutex mutex_;  // of the two below
  nb::object type_;     // type of the last object
  nb::object slot_;     // the descriptor of its slot `entry`; null: it has none
};

EnteringMethod::EnteringMethod(const nb::object& function) {
  nb::object code = function.attr("__code__"), defaults = function.attr("__defaults__");
  num_positional_ = nb::cast<size_t>(code.attr("co_argcount")) - 1;
  num_required_ = num_positional_ - (defaults.is_none() ? 0 : nb::len(defaults));
  auto num_keywords = nb::cast<size_t>(code.attr("co_kwonlyargcount"));
  auto method = nb::cast<std::string>(function.attr("__name__"));
  if (method != "replay") collective_ = collective_named(method);
  const std::pair<const char*, Field> fields[] = {
      {"data", &GivenCall::input},        {"input", &GivenCall::input},
      {"output", &GivenCall::output},     {"op", &GivenCall::op},
      {"root", &GivenCall::root},         {"peer", &GivenCall::peer},
      {"tag", &GivenCall::tag},           {"timeout_s", &GivenCall::timeout_s},
      {"async_op", &GivenCall::async_op}, {"compression", &GivenCall::compression}};
  for (size_t i = 1; i <= num_positional_ + num_keywords; ++i) {
    auto name = nb::cast<std::string>(code.attr("co_varnames")[i]);
    auto is_named = [&](const auto& field) { return name == field.first; };
    const auto* found = std::find_if(std::begin(fields), std::end(fields), is_named);
    if (found == std::end(fields)) throw std::invalid_argument("no argument of a call: " + name);
    names_.push_back(interned(name.c_str()));
    fields_.push_back(found->second);
  }
}

// Lives as long as the type does.
nb::handle EnteringMethod::slot_of(PyObject* type) {
  {
    nb::ft_lock_guard guard(mutex_);
    if (type_.ptr() == type) return slot_;
  }
  nb::object owner = nb::borrow(type), found = nb::getattr(owner, "entry", nb::none());
  if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) found.reset();
  nb::handle slot = found;
  nb::ft_lock_guard guard(mutex_);
  std::swap(type_, owner);
  std::swap(slot_, found);
  return slot;
}

// False: the Python function raises the error.
bool EnteringMethod::assign(PyObject* const* arguments, size_t num_arguments, PyObject* keywords,
                            GivenCall& given) const {
  if (num_arguments > num_positional_) return false;
  for (size_t i = 0; i < num_arguments; ++i) given.*fields_[i] = arguments[i];
  Py_ssize_t num_keywords = keywords == nullptr ? 0 : NB_TUPLE_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* name = NB_TUPLE_GET_ITEM(keywords, k);
    auto is_it = [name](const nb::object& one) { return one.ptr() == name; };
    auto found = std::find_if(names_.begin(), names_.end(), is_it);
    if (found == names_.end()) return false;
    PyObject*& field = given.*fields_[static_cast<size_t>(found - names_.begin())];
    if (field != nullptr) return false;
    field = arguments[num_arguments + static_cast<size_t>(k)];
  }
  for (size_t i = 0; i < num_required_; ++i) {
    if (given.*fields_[i] == nullptr) return false;
  }
  return true;
}

nb::object EnteringMethod::answer(PyObject* const* arguments, size_t num_arguments,
                                  PyObject* keywords) {
  if (num_arguments == 0) return {};
  PyObject* self = arguments[0];
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(self));
  nb::handle slot = slot_of(type);
  if (!slot.is_valid()) return {};
  nb::object found = nb::steal(read_slot(slot.ptr(), self, type));
  if (!found.is_valid()) throw nb::python_error();
  GivenCall given{};
  if (!assign(arguments + 1, num_arguments - 1, keywords, given)) return {};
  if (Py_TYPE(found.ptr()) == entry_type) {
    return nb::inst_ptr<CallEntry>(found)->call(collective_, given);
  }
  if (Py_TYPE(found.ptr()) != graph_type || is_given(given.async_op)) return {};
  try {
    return replay(found) ? nb::none() : nb::object();
  } catch (const CommunicatorFailed& failed) {
    raise(self, "failed", failed);
  }
}

}  // namespace

nb::object bind_call_entry(nb::module_& module) {
  nb::class_<EngineState>(module, "EngineState")
      .def(nb::init<nb::object, double>())
      .def_prop_rw("engine", &EngineState::engine, &EngineState::set_engine,
                   nb::arg("engine").none())
      .def_prop_rw(
          "timeout_s", [](const EngineState& s) { return s.timeout_s.load(); },
          [](EngineState& s, double timeout_s) { s.timeout_s = timeout_s; });
  nb::class_<CallEntry>(module, "CallEntry")
      .def(nb::init<std::shared_ptr<EngineState>, size_t, size_t, nb::object,
                    std::shared_ptr<ArrayReader>, AnyByAny, AnyByAny, nb::object, nb::object,
                    nb::object, nb::object, nb::object, nb::object>(),
           nb::kw_only(), nb::arg("state"), nb::arg("rank"), nb::arg("world_size"),
           nb::arg("plans"), nb::arg("reader"), nb::arg("groups"), nb::arg("captures"),
           nb::arg("errors"), nb::arg("work").none(), nb::arg("transfer"), nb::arg("byte"),
           nb::arg("gain").none(), nb::arg("oracle").none());
  entry_type = reinterpret_cast<PyTypeObject*>(nb::type<CallEntry>().ptr());
  graph_type = reinterpret_cast<PyTypeObject*>(module.attr("Graph").ptr());
  read_slot = reinterpret_cast<descrgetfunc>(PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_get));
  module.attr("Method") = nb::type_var("Method");
  nb::object wrapper_type = make_wrapper_type();
  module.def(
      "entering",
      [wrapper_type](nb::object method) {
        auto answer = std::make_unique<EnteringMethod>(method);
        return wrap_method(wrapper_type, std::move(method), std::move(answer));
      },
      nb::arg("method"), nb::sig("def entering(method: Method) -> Method"));
  return wrapper_type;
}

}  // namespace hccl
