// The path of a call from Python to the engine. Methods of communicators and of torch's process
// groups pass their arguments; if all are plain memory, the plan is looked up and the call made
// without a Python frame. The Python method handles all other calls.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/calls/arrays.h"
#include "bindings/calls/plan_cache.h"
#include "bindings/calls/requests.h"

namespace hccl {

using AnyByAny = nanobind::typed<nanobind::dict, nanobind::any, nanobind::any>;

// State shared by the calls of a communicator, owned by Python's CommunicatorState.
class EngineState {
 public:
  EngineState(nanobind::object engine, double seconds)
      : timeout_s(seconds), engine_(std::move(engine)) {}

  // Communicator; None: the communicator is closed, or in a forked child.
  nanobind::object engine() const {
    nanobind::ft_lock_guard guard(mutex_);
    return engine_;
  }
  void set_engine(nanobind::object engine) {
    nanobind::ft_lock_guard guard(mutex_);
    std::swap(engine_, engine);
  }

  std::atomic<double> timeout_s;  // default timeout of calls

 private:
  mutable nanobind::ft_mutex mutex_;
  nanobind::object engine_;
};

// The arguments of a call; null: not given. The data of a call that has one buffer is `input`.
struct GivenCall {
  PyObject *input, *output, *op, *root, *peer, *tag, *timeout_s, *compression, *async_op;
};

// The calls of one Collectives of hccl_py/calls/collectives.py, which makes it.
struct CallEntry {
  std::shared_ptr<EngineState> state;
  size_t rank, world_size;
  nanobind::object plans;  // PlanCache
  std::shared_ptr<ArrayReader> reader;
  AnyByAny groups;            // CALLS of call_group.py: open groups collect calls
  AnyByAny captures;          // CAPTURES of recording.py: open captures record calls
  nanobind::object errors;    // CallErrors
  nanobind::object work;      // the class Work, of calls in the background; None: calls block
  nanobind::object transfer;  // the class Transfer
  nanobind::object byte;      // the ElementType that a barrier reduces
  nanobind::object gain;      // GainCheck: while it is open, Python handles each sum; or None
  nanobind::object oracle;    // makes the same call in Python, for comparison; or None

  // None, or a Work. Null: the Python method must handle it.
  nanobind::object call(Collective collective, GivenCall& given);

 private:
  struct Shape;

  bool is_overridden(Collective collective) const;
  std::optional<double> timeout_of(PyObject* given) const;
  bool read(PyObject* array, Shape& shape, std::vector<Span>& to) const;
  bool read_blocks(PyObject*& given, Shape& shape, std::vector<Span>& to) const;
  bool read_data(Collective collective, const GivenCall& given, Shape& shape) const;
  bool read_all_blocks(Collective collective, GivenCall& given, Shape& shape) const;
  nanobind::object prepare(Collective collective, GivenCall& given, Shape& shape) const;
  nanobind::object prepare_transfer(Collective collective, const GivenCall& given,
                                    Shape& shape) const;
  void compare(Collective collective, const GivenCall& given, const Request& request) const;
};

}  // namespace hccl
