// Calls of a torch process group on plain host tensors, without torch's headers: they enter the
// engine directly (call_entry.h). The Python method handles all others: wrong arguments,
// subclasses, a timeout per call, torch's instruments and older overloads.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/typing.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/calls/call_entry.h"
#include "bindings/calls/torch_options.h"
#include "bindings/calls/wrapped_method.h"

namespace nb = nanobind;

namespace hccl {

namespace {

thread_local bool checks_here = false;  // no call of this thread is plain

PyObject* first_of(PyObject* list) {
  bool is_one = PyList_CheckExact(list) && NB_LIST_GET_SIZE(list) == 1;
  return is_one ? NB_LIST_GET_ITEM(list, 0) : nullptr;
}

class TorchMethod final : public Answer {
 public:
  // `facts`: see PlainFacts of hccl_py/torch_backend/groups/process_group.py.
  TorchMethod(const nb::object& function, const nb::object& facts, const std::string& method,
              std::string forms, nb::object options, const std::vector<std::string>& fields,
              nb::object when)
      : types_(facts.attr("types")),
        ops_(facts.attr("ops")),
        finished_(facts.attr("finished")),
        error_(facts.attr("error")),
        raise_failure_(facts.attr("raise_failure")),
        collective_(collective_named(method)),
        forms_(std::move(forms)),
        options_(std::move(options)),
        when_(std::move(when)),
        num_arguments_(nb::cast<size_t>(function.attr("__code__").attr("co_argcount"))) {
    for (nb::handle flag : facts.attr("instruments")) {
      auto name = nb::cast<std::string>(flag[1]);
      instruments_.emplace_back(flag[0], interned(name.c_str()));
    }
    auto has = [&](const char* field) {
      return std::find(fields.begin(), fields.end(), field) != fields.end();
    };
    has_op_ = has("reduceOp");
    has_root_ = has("rootRank");
    if (!options_.is_none()) {
      layout_ = TorchOptions::find(options_, facts.attr("unset_timeout"), has_op_, has_root_);
    }
  }

  nb::object answer(PyObject* const* arguments, size_t num_arguments, PyObject* keywords) override {
    if (keywords != nullptr) {
      bool are_options = NB_TUPLE_GET_SIZE(keywords) == 1 &&
                         NB_TUPLE_GET_ITEM(keywords, 0) == opts_.ptr() && !options_.is_none();
      if (!are_options) return {};
      ++num_arguments;
    }
    if (num_arguments != num_arguments_ || checks_here || !are_instruments_off()) return {};
    nb::handle group = arguments[0];
    PyObject* options = options_.is_none() ? nullptr : arguments[num_arguments - 1];
    if (!are_usual(options)) return {};
    GivenCall given{};
    if (!read_tensors(arguments, given)) return {};
    if (!when_.is_none() && !holds(arguments, num_arguments)) return {};
    nb::object root;
    if (options == nullptr) {
      given.peer = arguments[2];
      given.tag = arguments[3];
    } else if (has_root_) {
      root = nb::steal(PyLong_FromSsize_t(layout_->root(options)));
      given.root = root.ptr();
    }
    if (has_op_) {
      given.op = op_of(options);
      if (given.op == nullptr) return {};
    }
    bool blocks = options != nullptr && !layout_->is_async(options);
    nb::object entry = group.attr(blocks ? entry_ : background_entry_);
    nb::object work = enter(entry, given);
    if (!work.is_valid()) return {};
    if (work.is_none()) return finished_;
    nb::object results = results_of(arguments);
    return group.attr(started_)(work, results, group.attr(options != nullptr ? lane_ : apart_));
  }

 private:
  bool are_instruments_off() const {
    return std::none_of(instruments_.begin(), instruments_.end(), [](const auto& flag) {
      PyObject* value = PyDict_GetItem(flag.first.ptr(), flag.second.ptr());
      return value == nullptr || PyObject_IsTrue(value) != 0;
    });
  }

  bool is_plain(PyObject* item) const {
    return PySet_Contains(types_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(item))) == 1;
  }

  bool are_plain(PyObject* list) const {
    for (Py_ssize_t i = 0; i < NB_LIST_GET_SIZE(list); ++i) {
      if (!is_plain(NB_LIST_GET_ITEM(list, i))) return false;
    }
    return true;
  }

  // Options of the exact class, without a timeout.
  bool are_usual(PyObject* options) const {
    if (options == nullptr) return true;
    bool is_known = reinterpret_cast<PyObject*>(Py_TYPE(options)) == options_.ptr() && layout_;
    return is_known && !layout_->has_timeout(options);
  }

  // False if one is not plain. The forms: "t", a tensor; "l", a list of one; "b", a list of one
  // list of tensors. Of two arguments the first is the output.
  bool read_tensors(PyObject* const* arguments, GivenCall& given) const {
    for (size_t i = 0; i < forms_.size(); ++i) {
      PyObject* array = forms_[i] == 't' ? arguments[i + 1] : first_of(arguments[i + 1]);
      if (array == nullptr) return false;
      bool is_list = forms_[i] == 'b';
      if (!(is_list ? PyList_CheckExact(array) && are_plain(array) : is_plain(array))) return false;
      (i + 1 == forms_.size() ? given.input : given.output) = array;
    }
    return true;
  }

  bool holds(PyObject* const* arguments, size_t num_arguments) const {
    nb::object held = nb::steal(
        PyObject_Vectorcall(when_.ptr(), arguments, num_arguments - 1, nullptr));  // no options
    if (!held.is_valid()) throw nb::python_error();
    return held.ptr() == Py_True;
  }

  // Null: an operation that hccl-py lacks.
  PyObject* op_of(PyObject* options) const {
    nb::object number = nb::steal(PyLong_FromSsize_t(layout_->op(options)));
    return PyDict_GetItem(ops_.ptr(), number.ptr());
  }

  // Null: the method must handle it, or an argument was wrong; nothing was sent.
  nb::object enter(nb::handle entry, GivenCall& given) const {
    if (entry.is_none()) return {};
    try {
      return nb::inst_ptr<CallEntry>(entry)->call(collective_, given);
    } catch (nb::python_error& failure) {
      if (!failure.matches(error_)) throw;
      raise_failure_(failure.value());
      return {};
    }
  }

  nb::object results_of(PyObject* const* arguments) const {
    if (forms_.empty()) return nb::list();
    if (forms_[0] == 'l') return nb::borrow(arguments[1]);
    nb::list results;
    if (forms_[0] == 't') {
      results.append(nb::handle(arguments[1]));
    } else {
      results.extend(nb::handle(first_of(arguments[1])));
    }
    return results;
  }

  std::vector<std::pair<nb::object, nb::object>> instruments_;
  nb::object types_, ops_, finished_, error_, raise_failure_;
  const Collective collective_;
  std::string forms_;
  nb::object options_;  // their type; None: it has none, and returns a Work
  std::optional<TorchOptions> layout_;
  bool has_op_ = false, has_root_ = false;
  nb::object when_;  // one more condition
  size_t num_arguments_;
  nb::object opts_ = interned("opts"), entry_ = interned("entry"),
             background_entry_ = interned("background_entry"), started_ = interned("started"),
             lane_ = interned("lane"), apart_ = interned("apart");
};

}  // namespace

void bind_torch_calls(nb::module_& module, const nb::object& wrapper_type) {
  module.def("check_calls_here", [](bool on) { return std::exchange(checks_here, on); });
  module.def(
      "plain_call",
      [wrapper_type](nb::object function, const nb::object& facts, const std::string& method,
                     std::string forms, nb::object options, const std::vector<std::string>& fields,
                     nb::object when) {
        auto answer = std::make_unique<TorchMethod>(function, facts, method, std::move(forms),
                                                    std::move(options), fields, std::move(when));
        return wrap_method(wrapper_type, std::move(function), std::move(answer));
      },
      nb::arg("function"), nb::arg("facts"), nb::arg("method"), nb::arg("forms"),
      nb::arg("options").none(), nb::arg("fields"), nb::arg("when").none(),
      nb::sig("def plain_call(function: Method, facts: typing.Any, method: str, forms: str, "
              "options: type | None, fields: collections.abc.Sequence[str], "
              "when: collections.abc.Callable[..., bool] | None) -> Method"));
}

}  // namespace hccl
