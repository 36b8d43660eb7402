#include "bindings/calls/torch_options.h"

#include <malloc.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;

namespace hccl {

// The only place where both objects have the values that they are given, also when swapped.
template <typename T>
size_t TorchOptions::find_field(const nb::object (&two)[2], const char* name,
                                const nb::object (&values)[2], const T (&raw)[2]) {
  size_t size = SIZE_MAX;
  for (const nb::object& one : two) {
    size = std::min(size, malloc_usable_size(const_cast<std::byte*>(begin(one.ptr()))));
  }
  std::vector<size_t> found;
  for (size_t at = 0; at + sizeof(T) <= size; at += sizeof(T)) found.push_back(at);
  for (size_t turn : {0, 1}) {
    for (size_t i : {0, 1}) two[i].attr(name) = values[i ^ turn];
    std::erase_if(found, [&](size_t at) {
      return read<T>(two[0].ptr(), at) != raw[turn] || read<T>(two[1].ptr(), at) != raw[1 ^ turn];
    });
  }
  if (found.size() != 1) throw std::out_of_range("no such field");
  return found[0];
}

std::optional<TorchOptions> TorchOptions::find(const nb::object& type,
                                               const nb::object& unset_timeout, bool has_op,
                                               bool has_root) {
  TorchOptions options;
  try {
    if (!type.type().attr("__name__").equal(nb::str("pybind11_type"))) return {};
    const nb::object two[2] = {type(), type()};
    if (!two[0].attr("timeout").equal(unset_timeout)) return {};
    nb::object timedelta = nb::module_::import_("datetime").attr("timedelta");
    nb::object all_ops = nb::module_::import_("torch.distributed").attr("ReduceOp");
    const int64_t raw[2] = {4099, 70001};
    const nb::object times[2] = {timedelta(nb::arg("milliseconds") = raw[0]),
                                 timedelta(nb::arg("milliseconds") = raw[1])};
    options.timeout_ = find_field(two, "timeout", times, raw);
    options.async_ =
        find_field<uint8_t>(two, "asyncOp", {nb::bool_(true), nb::bool_(false)}, {1, 0});
    const nb::object ops[2] = {all_ops.attr("MAX"), all_ops.attr("MIN")};
    auto number = [](const nb::object& op) { return static_cast<uint8_t>(nb::hash(op)); };
    if (has_op) {
      options.op_ = find_field<uint8_t>(two, "reduceOp", ops, {number(ops[0]), number(ops[1])});
    }
    const nb::object roots[2] = {nb::int_(raw[0]), nb::int_(raw[1])};
    if (has_root) options.root_ = find_field(two, "rootRank", roots, raw);
    options.unset_ = read<int64_t>(nb::object(type()).ptr(), options.timeout_);
  } catch (const std::exception&) {  // also Python's, for example if a program has changed torch
    return {};
  }
  return options;
}

}  // namespace hccl
