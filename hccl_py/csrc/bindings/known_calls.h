// Calls by the arguments that a caller passed. What a method of hccl_py/collectives.py found out
// about these arguments holds for all that are described alike, so it need not be found out again.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "bindings/arrays.h"
#include "bindings/requests.h"

namespace hccl {

using AnyTuple = nanobind::typed<nanobind::tuple, nanobind::any, nanobind::ellipsis>;

class KnownCalls {
 public:
  static constexpr size_t most_arguments = 3, most_listed = 64;

  // An array by its Python type, its element type and its count; a list of arrays that are alike in
  // these, by them and its length. Anything else is an int, by identity: small numbers and members
  // of an enum are one object each.
  struct Argument {
    PyTypeObject* type = nullptr;  // null: no array
    uintptr_t value = 0;
    size_t count = 0;
    size_t num_listed = 0;  // 0: no list
    bool operator==(const Argument&) const = default;
  };
  // `method`: its interned name.
  struct Key {
    PyObject* method = nullptr;
    std::array<Argument, most_arguments> arguments{};
    bool operator==(const Key&) const = default;
  };
  struct Addresses {
    std::array<std::byte*, most_arguments> arrays{};
    std::array<std::byte*, most_listed> listed;  // of the arrays of the one list
  };

  struct Call {
    Key key;
    nanobind::object kept;  // what the key names by address
    nanobind::object prepared;
    // Of the first argument, the output, and the second, the input; none: the first is `data`.
    size_t num_outputs = 0, num_inputs = 0, block_count = 0;
    std::byte* data = nullptr;  // of a call without arguments
  };

  // Describes arguments of a call; false if one of them has no description, or two are lists.
  bool describe(PyObject* method, PyObject* const* arguments, size_t num_arguments, Key& key,
                Addresses& addresses) const;
  // Null: unknown. Valid until Python code runs, or another thread.
  const Call* find(const Key& key) const;
  // Notes a call: its method's name, then all arguments. `blocks`: how many outputs, how many
  // inputs, and the length of each. The engine has checked nothing of it.
  void learn(const AnyTuple& call, nanobind::object prepared, nanobind::object blocks,
             uint64_t data);
  void clear() { calls_ = nullptr; }

 private:
  static constexpr size_t capacity = 64;

  static size_t place_of(const Key& key);
  bool describe_list(PyObject* list, Argument& description, Addresses& addresses) const;

  ArrayReader reader_;
  // One place for each key: a later call replaces an earlier one there. Null: none was learnt.
  std::unique_ptr<std::array<Call, capacity>> calls_;
};

}  // namespace hccl
