// Calls of a torch process group on plain host tensors, without torch's headers: they go to the
// communicator at once. All others are the Python method's: what the communicator rejects before it
// sends anything, subclasses, a timeout of the call, torch's instruments and older overloads.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/typing.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/wrapped_method.h"

namespace nb = nanobind;

namespace hccl {

namespace {

nb::object first_of(nb::handle list) {
  if (!PyList_CheckExact(list.ptr()) || PyList_GET_SIZE(list.ptr()) != 1) return {};
  return nb::borrow(PyList_GET_ITEM(list.ptr(), 0));
}

class PlainCall final : public Answer {
 public:
  // `facts`: see PlainFacts of hccl_py/torch_backend/process_group.py.
  PlainCall(const nb::object& function, const nb::object& facts, const std::string& method,
            std::string forms, nb::object options, const std::vector<std::string>& fields,
            nb::object when)
      : types_(facts.attr("types")),
        ops_(facts.attr("ops")),
        unset_timeout_(facts.attr("unset_timeout")),
        finished_(facts.attr("finished")),
        error_(facts.attr("error")),
        raise_failure_(facts.attr("raise_failure")),
        method_(interned(method.c_str())),
        forms_(std::move(forms)),
        options_(std::move(options)),
        when_(std::move(when)),
        num_arguments_(count_arguments(function)) {
    for (nb::handle flag : facts.attr("instruments")) {
      auto name = nb::cast<std::string>(flag[1]);
      instruments_.emplace_back(flag[0], interned(name.c_str()));
    }
    for (const std::string& field : fields) fields_.push_back(interned(field.c_str()));
  }

  nb::object answer(PyObject* const* arguments, size_t num_arguments) override {
    if (num_arguments != num_arguments_ || !are_instruments_off()) return {};
    nb::handle group = arguments[0], options;
    if (!options_.is_none()) options = arguments[num_arguments - 1];
    if (nb::object(group.attr(fast_)).ptr() != Py_True || !are_usual(options)) return {};
    std::array<nb::object, most_arguments> passed;
    size_t count = 1;
    for (; count <= forms_.size(); ++count) {
      passed[count] = array_of(forms_[count - 1], arguments[count]);
      if (!passed[count].is_valid()) return {};
    }
    if (!when_.is_none() && !holds(arguments, num_arguments)) return {};
    if (options.is_valid()) {
      for (const nb::object& field : fields_) passed[count++] = value_of(options, field);
    } else {
      for (; count < num_arguments; ++count) passed[count] = nb::borrow(arguments[count]);
    }
    bool blocks = options.is_valid() && nb::object(options.attr(async_)).ptr() != Py_True;
    passed[0] = group.attr(blocks ? communicator_ : background_);
    nb::object work = call(passed, count);
    if (!work.is_valid()) return {};
    if (work.is_none()) return finished_;
    nb::object results = results_of(arguments, passed[1]);
    return group.attr(started_)(work, results, group.attr(options.is_valid() ? lane_ : apart_));
  }

  PyObject* keyword() const override { return options_.is_none() ? nullptr : opts_.ptr(); }

 private:
  static constexpr size_t most_arguments = 5;

  bool are_instruments_off() const {
    return std::none_of(instruments_.begin(), instruments_.end(), [](const auto& flag) {
      PyObject* value = PyDict_GetItem(flag.first.ptr(), flag.second.ptr());
      return value == nullptr || PyObject_IsTrue(value) != 0;
    });
  }

  bool is_plain(nb::handle item) const {
    return PySet_Contains(types_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(item.ptr()))) == 1;
  }

  bool are_plain(PyObject* list) const {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      if (!is_plain(PyList_GET_ITEM(list, i))) return false;
    }
    return true;
  }

  // No options of a subclass, and no timeout of the call's own.
  bool are_usual(nb::handle options) const {
    if (!options.is_valid()) return true;
    if (reinterpret_cast<PyObject*>(Py_TYPE(options.ptr())) != options_.ptr()) return false;
    return options.attr(timeout_).equal(unset_timeout_);
  }

  // The argument of the communicator; null if it is not plain. The forms: "t", a tensor; "l", a
  // list of one; "b", a list of one list of tensors.
  nb::object array_of(char form, nb::handle given) const {
    nb::object array = form == 't' ? nb::borrow(given) : first_of(given);
    if (!array.is_valid()) return {};
    if (form != 'b') return is_plain(array) ? array : nb::object();
    return PyList_CheckExact(array.ptr()) && are_plain(array.ptr()) ? array : nb::object();
  }

  bool holds(PyObject* const* arguments, size_t num_arguments) const {
    nb::object held = nb::steal(
        PyObject_Vectorcall(when_.ptr(), arguments, num_arguments - 1, nullptr));  // no options
    if (!held.is_valid()) throw nb::python_error();
    return held.ptr() == Py_True;
  }

  nb::object value_of(nb::handle options, const nb::object& field) const {
    nb::object value = options.attr(field);
    if (field.ptr() != reduce_op_.ptr()) return value;
    nb::object hash = nb::steal(PyLong_FromSsize_t(PyObject_Hash(value.ptr())));
    PyObject* op = PyDict_GetItem(ops_.ptr(), hash.ptr());
    return op == nullptr ? nb::none() : nb::borrow(op);
  }

  // Null: an argument was wrong, and nothing was sent.
  nb::object call(const std::array<nb::object, most_arguments>& passed, size_t count) const {
    std::array<PyObject*, most_arguments> stack{};
    for (size_t i = 0; i < count; ++i) stack[i] = passed[i].ptr();
    PyObject* work = PyObject_VectorcallMethod(method_.ptr(), stack.data(), count, nullptr);
    if (work != nullptr) return nb::steal(work);
    nb::python_error failure;
    if (!failure.matches(error_)) throw failure;
    raise_failure_(failure.value());
    return {};
  }

  nb::object results_of(PyObject* const* arguments, const nb::object& first) const {
    if (forms_.empty()) return nb::list();
    if (forms_[0] == 'l') return nb::borrow(arguments[1]);
    nb::list results;
    if (forms_[0] == 't') {
      results.append(first);
    } else {
      results.extend(first);
    }
    return results;
  }

  std::vector<std::pair<nb::object, nb::object>> instruments_;
  nb::object types_, ops_, unset_timeout_, finished_, error_, raise_failure_;
  nb::object method_;
  std::string forms_;
  nb::object options_;  // their type; None: it has none, and returns a Work
  std::vector<nb::object> fields_;
  nb::object when_;  // one more condition
  size_t num_arguments_;
  nb::object fast_ = interned("fast"), opts_ = interned("opts"), timeout_ = interned("timeout"),
             async_ = interned("asyncOp"), reduce_op_ = interned("reduceOp"),
             communicator_ = interned("communicator"), background_ = interned("background"),
             started_ = interned("started"), lane_ = interned("lane"), apart_ = interned("apart");
};

}  // namespace

void bind_plain_calls(nb::module_& module, const nb::object& wrapper_type) {
  module.def(
      "plain_call",
      [wrapper_type](nb::object function, const nb::object& facts, const std::string& method,
                     std::string forms, nb::object options, const std::vector<std::string>& fields,
                     nb::object when) {
        auto answer = std::make_unique<PlainCall>(function, facts, method, std::move(forms),
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
