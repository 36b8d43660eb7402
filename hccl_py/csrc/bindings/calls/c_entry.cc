#include "bindings/c_entry.h"

#include <nanobind/stl/shared_ptr.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/calls/requests.h"
#include "reduce/reduce.h"

namespace nb = nanobind;

namespace hccl {

struct CEngine {
  nb::object python;
  Communicator& communicator;
};

struct CPlan {
  Prepared prepared;
};

struct CCall {
  RequestPtr request = std::make_shared<Request>();
  FailurePtr failure;  // of the last submission
};

namespace {

void never_interrupted() {}  // signals are the program's own

void add(std::vector<Span>& spans, const CBlock* blocks, size_t num_blocks) {
  spans.clear();
  for (size_t i = 0; i < num_blocks; ++i) {
    spans.push_back({static_cast<std::byte*>(blocks[i].address), blocks[i].num_bytes});
  }
}

// A request that the engine has not let go of yet is replaced.
Request& fresh(CCall& call) {
  if (call.request.use_count() > 1) call.request = std::make_shared<Request>();
  call.request->failure = nullptr;
  call.request->done.store(false, std::memory_order_relaxed);
  call.failure = nullptr;
  return *call.request;
}

void set_collective(CCall* call, const CPlan* plan, const CBlock* read, size_t num_read,
                    const CBlock* written, size_t num_written) {
  Request& request = fresh(*call);
  add(request.call.input, read, num_read);
  add(request.call.output, written, num_written);
  complete(request, plan->prepared, 1);
}

void set_transfer(CCall* call, bool sends, int peer, const CBlock* memory) {
  complete(fresh(*call), {sends, peer, 0, memory->num_bytes},
           static_cast<std::byte*>(memory->address));
}

// A failed submission ends every call that is not done.
CResult ended(CCall* const* calls, size_t num_calls) {
  CResult result = CResult::done;
  for (size_t i = 0; i < num_calls; ++i) {
    if (calls[i]->failure == nullptr && calls[i]->request->is_done()) {
      calls[i]->failure = calls[i]->request->failure;
    }
    if (calls[i]->failure != nullptr) result = CResult::failed;
  }
  return result;
}

template <typename Submit>
CResult submit(CCall* const* calls, size_t num_calls, double timeout_s, Submit&& how) {
  std::vector<RequestPtr> requests;
  for (size_t i = 0; i < num_calls; ++i) {
    begin(*calls[i]->request, timeout_s);
    requests.push_back(calls[i]->request);
  }
  try {
    how(requests);
  } catch (const CommunicatorFailed& failed) {
    for (size_t i = 0; i < num_calls; ++i) {
      if (!calls[i]->request->is_done()) calls[i]->failure = failed.failure;
    }
  }
  return ended(calls, num_calls);
}

CResult run_with(CEngine* engine, CCall* const* calls, size_t num_calls, double timeout_s,
                 void (*interrupt)()) {
  Communicator& communicator = engine->communicator;
  if (num_calls > 1) {
    return submit(calls, num_calls, timeout_s, [&](const std::vector<RequestPtr>& requests) {
      communicator.run(requests, interrupt);
    });
  }
  begin(*calls[0]->request, timeout_s);
  try {
    communicator.run(calls[0]->request, interrupt);
  } catch (const CommunicatorFailed& failed) {
    calls[0]->failure = failed.failure;
    return CResult::failed;
  }
  return CResult::done;
}

CResult run(CEngine* engine, CCall* const* calls, size_t num_calls, double timeout_s) {
  return run_with(engine, calls, num_calls, timeout_s, never_interrupted);
}

CResult start(CEngine* engine, CCall* const* calls, size_t num_calls, double timeout_s) {
  return submit(calls, num_calls, timeout_s, [&](const std::vector<RequestPtr>& requests) {
    requests.size() == 1 ? engine->communicator.start_moving(requests[0])
                         : engine->communicator.start(requests);
  });
}

CResult state(const CCall* call) {
  if (call->failure != nullptr) return CResult::failed;
  if (!call->request->is_done()) return CResult::running;
  return call->request->failure == nullptr ? CResult::done : CResult::failed;
}

CResult wait(CEngine* engine, CCall* call, double timeout_s) {
  if (call->failure != nullptr) return CResult::failed;
  try {
    Deadline deadline = Clock::now() + duration_of(timeout_s);
    bool is_done = engine->communicator.wait(call->request, deadline, never_interrupted);
    return is_done ? CResult::done : CResult::running;
  } catch (const CommunicatorFailed& failed) {
    call->failure = failed.failure;
    return CResult::failed;
  }
}

void* failure(const CCall* call) {
  const FailurePtr& found = call->failure != nullptr ? call->failure : call->request->failure;
  if (found == nullptr) return nullptr;
  return python_exception(CommunicatorFailed(found)).release().ptr();
}

const CEntry entry{
    CEntry::current,
    [](void* engine) {
      nb::handle handle(static_cast<PyObject*>(engine));
      return new CEngine{nb::borrow(handle), *nb::inst_ptr<Communicator>(handle)};
    },
    [](CEngine* engine) { delete engine; },
    [](void* prepared) {
      return new CPlan{*nb::inst_ptr<Prepared>(nb::handle(static_cast<PyObject*>(prepared)))};
    },
    [](CPlan* plan) { delete plan; },
    [] { return new CCall; },
    [](CCall* call) { delete call; },
    set_collective,
    set_transfer,
    run,
    start,
    wait,
    state,
    failure,
    [](int dtype, void* to, const void* from, size_t count, double factor) {
      return multiply(static_cast<DType>(dtype), static_cast<std::byte*>(to),
                      static_cast<const std::byte*>(from), count, factor);
    }};

}  // namespace

const CEntry& c_entry() { return entry; }

CResult run_checking_signals(CEngine* engine, CCall* const* calls, size_t num_calls,
                             double timeout_s) {
  return run_with(engine, calls, num_calls, timeout_s, check_signals);
}

void bind_c_entry(nb::module_& module) {
  module.attr("c_entry_version") = CEntry::current;
  module.def("c_entry", []() -> nb::object { return nb::capsule(&entry, CEntry::name); });
}

}  // namespace hccl
