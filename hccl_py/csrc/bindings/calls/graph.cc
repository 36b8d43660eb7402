#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/calls/arrays.h"
#include "bindings/calls/call_entry.h"
#include "bindings/calls/requests.h"
#include "engine/graph/graph.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// From Graph.fill of hccl_py/graphs/graph.py: awaited calls, communicator, first, last, whether it
// blocks.
using Step = std::tuple<std::vector<size_t>, size_t, size_t, size_t, bool>;

std::vector<Graph::Step> steps_of(const std::vector<Step>& steps) {
  std::vector<Graph::Step> made;
  for (const auto& [awaited, engine, first, last, blocks] : steps) {
    made.push_back({awaited, engine, first, last, blocks});
  }
  return made;
}

std::vector<Graph::Call> calls_of(const std::vector<UnsubmittedCall*>& calls) {
  std::vector<Graph::Call> made;
  for (const UnsubmittedCall* call : calls) {
    std::chrono::duration<double> timeout = call->request->deadline - call->request->submitted;
    made.push_back({call->request, timeout.count()});
  }
  return made;
}

// A graph for Python: finds the engines, and checks that the memory has not moved.
class BoundGraph {
 public:
  // Why nothing was submitted. Above 0: the number of the call, from 1, whose memory moved.
  enum Outcome : int { submitted = 0, under_way = -1, runs_elsewhere = -2, closed = -3 };

  // `overrides`: while one of these is not empty, replay() leaves the graph to Python.
  BoundGraph(std::vector<std::shared_ptr<EngineState>> states,
             const std::vector<UnsubmittedCall*>& calls, const std::vector<Step>& steps,
             std::vector<AnyByAny> overrides, std::shared_ptr<ArrayReader> reader)
      : states_(std::move(states)),
        overrides_(std::move(overrides)),
        reader_(std::move(reader)),
        graph_(calls_of(calls), steps_of(steps)) {
    for (const UnsubmittedCall* call : calls) buffers_.push_back(call->buffers);
  }

  // Whether `object` of call `number` could be read; then each replay checks its address.
  bool watch(nb::object object, int number) {
    ArrayView view;
    if (!reader_->read(object.ptr(), view)) return false;
    watched_.push_back({std::move(object), view, number});
    return true;
  }

  int run() {
    return issue([this] { graph_.run(engines_, check_signals); });
  }

  bool replay() {
    for (const nb::dict& calls : overrides_) {
      if (NB_DICT_GET_SIZE(calls.ptr()) != 0) return false;
    }
    return run() == submitted;
  }

  int start() {
    return issue([this] {
      ++num_started_;
      graph_.start(engines_);
    });
  }

  bool wait(double timeout_s) {
    // A copy: another thread may begin the next replay as soon as this one is done.
    std::vector<nb::object> cores;
    std::vector<Communicator*> engines;
    bool finished;
    {
      nb::ft_lock_guard guard(mutex_);
      cores = cores_;
      engines = engines_;
    }
    {
      nb::gil_scoped_release release;
      finished = graph_.wait(engines, Clock::now() + duration_of(timeout_s), check_signals);
    }
    nb::ft_lock_guard guard(mutex_);
    if (!is_running_) forget_engines();
    return finished;
  }

  const Graph& graph() const { return graph_; }
  size_t num_started() const { return num_started_; }

 private:
  struct Watched {
    nb::object object;
    ArrayView view;
    int call;
  };
  struct Running {
    BoundGraph& graph;
    ~Running() {
      nb::ft_lock_guard guard(graph.mutex_);
      graph.is_running_ = false;
      graph.forget_engines();
    }
  };

  template <typename Submit>
  int issue(Submit submit) {
    {
      nb::ft_lock_guard guard(mutex_);
      if (is_running_) return runs_elsewhere;
      is_running_ = true;
    }
    Running running{*this};
    if (int outcome = prepare(); outcome != submitted) return outcome;
    nb::gil_scoped_release release;
    submit();
    return submitted;
  }

  // Drops engines whose communicators have been closed.
  void forget_engines() {
    if (!graph_.is_done()) return;
    engines_.clear();
    cores_.clear();
  }

  int prepare() {
    if (!graph_.is_done()) return under_way;
    for (const Watched& one : watched_) {
      ArrayView now;
      bool stays = reader_->read(one.object.ptr(), now) && now.address == one.view.address &&
                   now.count == one.view.count && now.id == one.view.id;
      if (!stays) return one.call;
    }
    nb::ft_lock_guard guard(mutex_);
    forget_engines();
    for (const auto& state : states_) {
      nb::object engine = state->engine();
      if (engine.is_none()) return closed;
      engines_.push_back(nb::inst_ptr<Communicator>(engine));
      cores_.push_back(std::move(engine));
    }
    return submitted;
  }

  const std::vector<std::shared_ptr<EngineState>> states_;
  const std::vector<AnyByAny> overrides_;
  const std::shared_ptr<ArrayReader> reader_;
  std::vector<nb::object> buffers_;
  std::vector<Watched> watched_;
  nb::ft_mutex mutex_;             // of what follows, except in the thread that is in issue()
  std::vector<nb::object> cores_;  // of the running replay
  std::vector<Communicator*> engines_;
  bool is_running_ = false;  // a thread is in issue()
  std::atomic<size_t> num_started_ = 0;
  Graph graph_;
};

}  // namespace

bool replay(nb::handle graph) { return nb::inst_ptr<BoundGraph>(graph)->replay(); }

void bind_graph(nb::module_& module) {
  nb::class_<BoundGraph>(module, "Graph")
      .def(
          nb::init<std::vector<std::shared_ptr<EngineState>>, const std::vector<UnsubmittedCall*>&,
                   const std::vector<Step>&, std::vector<AnyByAny>, std::shared_ptr<ArrayReader>>())
      .def("watch", &BoundGraph::watch)
      .def("run", &BoundGraph::run)
      .def("start", &BoundGraph::start)
      .def("wait", &BoundGraph::wait)
      .def("is_one_batch", [](const BoundGraph& g) { return g.graph().is_one_batch(); })
      .def("done", [](const BoundGraph& g) { return g.graph().is_done(); })
      .def("num_started", &BoundGraph::num_started)
      .def("first_open", [](const BoundGraph& g) { return g.graph().first_open(); })
      // None: no call has failed.
      .def("first_failed", [](const BoundGraph& g) {
        size_t found = g.graph().first_failed();
        return found < g.graph().size() ? std::optional(found) : std::nullopt;
      });
}

}  // namespace hccl
