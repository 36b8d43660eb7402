// The one way of a call from Python to the engine. Methods of communicators and of torch's process
// groups say what they were given; if all of it is plain memory, the plan is looked up and the call
// made without a Python frame. Everything else is left to the Python method.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "bindings/calls/arrays.h"
#include "bindings/calls/plan_cache.h"
#include "bindings/calls/requests.h"

namespace hccl {

using AnyByAny = nanobind::typed<nanobind::dict, nanobind::any, nanobind::any>;

// What the calls of a communicator share; CommunicatorState of Python has it.
struct EngineState {
  nanobind::object engine;  // Communicator; None: the communicator is closed, or in a forked child
  double timeout_s;         // of calls that do not say
};

// The arguments of a call; null: not given. The data of a call that has one buffer is `input`.
struct GivenCall {
  PyObject *input, *output, *op, *root, *peer, *tag, *timeout_s, *compression, *async_op;
};

// The calls of one Collectives of hccl_py/collectives.py, which makes it.
struct CallEntry {
  std::shared_ptr<EngineState> state;
  size_t rank, world_size;
  nanobind::object plans;  // PlanCache
  std::shared_ptr<ArrayReader> reader;
  AnyByAny groups;            // CALLS of call_group.py: a call may have to be collected
  AnyByAny captures;          // CAPTURES of recording.py: or recorded
  nanobind::object errors;    // CallErrors
  nanobind::object work;      // the class Work, of calls in the background; None: calls block
  nanobind::object transfer;  // the class Transfer
  nanobind::object byte;      // the ElementType of what a barrier reduces
  nanobind::object gain;      // GainCheck: while it is open, Python looks at each sum; or None
  nanobind::object oracle;    // what Python makes of a call, to be compared; or None

  // None, or a Work. Null: the Python method has to do it.
  nanobind::object call(Collective collective, GivenCall& given);

 private:
  struct Shape;

  bool is_detoured(Collective collective) const;
  std::optional<double> timeout_of(PyObject* given) const;
  bool read(PyObject* array, Shape& shape, std::vector<Span>& to) const;
  bool read_blocks(PyObject*& given, Shape& shape, std::vector<Span>& to) const;
  bool read_data(Collective collective, const GivenCall& given, Shape& shape) const;
  bool read_all_blocks(Collective collective, GivenCall& given, Shape& shape) const;
  nanobind::object prepare(Collective collective, GivenCall& given, Shape& shape,
                           double timeout_s) const;
  nanobind::object prepare_transfer(Collective collective, const GivenCall& given, Shape& shape,
                                    double timeout_s) const;
  void compare(Collective collective, const GivenCall& given, const Request& request) const;
};

}  // namespace hccl
