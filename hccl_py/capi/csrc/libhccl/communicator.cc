#include "libhccl/communicator.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

constexpr const char* collective_names[] = {"all_reduce",     "broadcast",  "reduce", "all_gather",
                                            "reduce_scatter", "all_to_all", "barrier"};
constexpr size_t most_plans = 4096;  // more are sizes that do not recur

std::mutex last_mutex;
Error& last() {
  static Error& error = *new Error;  // threads may run until the process has ended
  return error;
}

}  // namespace

Error last_failure() {
  std::lock_guard guard(last_mutex);
  return last();
}

KeptPlan::~KeptPlan() {
  entry->drop_plan(plan);
  Gil gil;
  api.Py_DecRef(prepared);
}

Communicator::~Communicator() {
  if (CCall* call = spare.exchange(nullptr)) entry->drop_call(call);
  if (python == nullptr) return;
  Gil gil;
  entry->close(engine);
  api.Py_DecRef(python);
}

void Communicator::connect(const hcclUniqueId& id, int rank, int size, double timeout_s,
                           std::string name) {
  Gil gil;
  adopt(call_python("connect", "(Kniids)", uint64_t(id.internal), ptrdiff_t(id.length), rank, size,
                    timeout_s, name.c_str()),
        timeout_s);
}

void Communicator::adopt(const Object& opened, double its_timeout_s) {
  engine = entry->open(opened.item(1));
  rank = int(opened.number(2));
  size = int(opened.number(3));
  timeout_s = its_timeout_s;
  api.Py_IncRef(opened.item(0));
  python = opened.item(0);
  State before = State::being_made;
  // Another thread may have left it meanwhile. It has set the state, and then looked for `python`.
  if (!state_.compare_exchange_strong(before, State::open)) close();
}

void Communicator::fail(Error error) {
  {
    std::lock_guard guard(last_mutex);
    last() = error;
  }
  std::lock_guard guard(failure_mutex_);
  if (failure_.code == hcclSuccess) failure_ = std::move(error);
  state_ = State::ended;
}

Error Communicator::failure() const {
  std::lock_guard guard(failure_mutex_);
  return failure_;
}

void Communicator::require_open() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::open: return;
    case State::being_made:
      throw Error{hcclBusy, "the communicator is still being made; ask hcclCommGetAsyncError"};
    case State::finalized:
      throw Error{hcclInvalidUsage, "the communicator was finalized, and takes no more calls"};
    case State::ended: throw failure();
  }
}

void Communicator::require_made() const {
  if (python == nullptr) require_open();
}

void Communicator::finalize() {
  State before = state_;
  while (before != State::ended && !state_.compare_exchange_weak(before, State::finalized)) {
  }
}

void Communicator::close() {
  finalize();
  if (python == nullptr) return;
  Gil gil;
  call_python("close", "(O)", python.load());
}

void Communicator::abort() {
  fail({hcclStreamError, "hcclCommAbort() was called"});
  if (python == nullptr) return;
  Gil gil;
  call_python("abort", "(O)", python.load());
}

PlanPtr Communicator::plan(Kind kind, hcclDataType_t type, int op, size_t count, int root) {
  Key key{count, root, kind, uint8_t(type), uint8_t(op)};
  {
    std::lock_guard guard(mutex);
    if (auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  PlanPtr made;
  {
    Gil gil;
    Object prepared = call_python("plan", "(Osiini)", python.load(), collective_names[size_t(kind)],
                                  int(type), op, ptrdiff_t(count), root);
    CPlan* plan = entry->keep_plan(prepared.get());
    made.reset(new KeptPlan{plan, prepared.release()});
  }
  std::unordered_map<Key, PlanPtr, Hash> dropped;  // after the lock: it takes Python's
  std::lock_guard guard(mutex);
  if (plans_.size() >= most_plans) plans_.swap(dropped);
  plans_[key] = made;
  return made;
}

Error Communicator::explain(const CCall* call, const KeptPlan* plan, bool sends, int peer,
                            size_t num_bytes) {
  Error error{hcclInternalError, "the call failed"};
  bool has_ended = true;
  {
    Gil gil;
    Object failed(static_cast<PyObject*>(entry->failure(call)));
    if (failed.get() == nullptr) return error;
    Object answer =
        plan != nullptr
            ? call_python("explain", "(OOO)", python.load(), failed.get(), plan->prepared)
            : call_python("explain_transfer", "(OOiin)", python.load(), failed.get(), int(sends),
                          peer, ptrdiff_t(num_bytes));
    error = {static_cast<hcclResult_t>(answer.number(0)), answer.text(1)};
    has_ended = answer.number(2) != 0;
  }
  if (has_ended) fail(error);
  return error;
}

Call::Call(Asked what) : asked(std::move(what)) {
  handle = asked.communicator->spare.exchange(nullptr, std::memory_order_acq_rel);
  if (handle == nullptr) handle = entry->make_call();
}

Call::~Call() {
  if (!is_done()) return;  // the engine still has it
  CCall* other = asked.communicator->spare.exchange(handle, std::memory_order_acq_rel);
  if (other != nullptr) entry->drop_call(other);
}

void Call::prepare() {
  const Asked& a = asked;
  size_t n = size_t(a.communicator->size), bytes = a.num_bytes();
  auto* send = static_cast<std::byte*>(const_cast<void*>(a.send));
  auto* recv = static_cast<std::byte*>(a.recv);
  if (a.is_transfer()) {
    CBlock memory{a.kind == Kind::send ? send : recv, bytes};
    entry->set_transfer(handle, a.kind == Kind::send, a.root, &memory);
    return;
  }
  bool sends_all = a.kind == Kind::reduce_scatter || a.kind == Kind::all_to_all;
  size_t input_bytes = sends_all ? n * bytes : bytes;
  if (a.factor) {
    double value = a.factor->on_device ? read_factor(a.factor->on_device, a.type) : a.factor->value;
    copy_.resize(input_bytes);
    entry->multiply(dtype_of(a.type), copy_.data(), send, input_bytes / item_bytes(a.type), value);
    send = copy_.data();
  } else if (a.kind == Kind::all_to_all && send == recv) {
    copy_.assign(send, send + input_bytes);
    send = copy_.data();
  }
  bool is_root = a.root == a.communicator->rank;
  CBlock in{send, bytes}, out{recv, bytes};
  std::vector<CBlock> blocks;
  auto cut = [&](std::byte* from) {
    for (size_t i = 0; i < n; ++i) blocks.push_back({from + i * bytes, bytes});
    return blocks.data() + blocks.size() - n;
  };
  auto set = [&](const CBlock* read, size_t num_read, const CBlock* written, size_t num_written) {
    entry->set_collective(handle, a.plan->plan, read, num_read, written, num_written);
  };
  switch (a.kind) {
    case Kind::all_reduce: return set(&in, 1, &out, 1);
    case Kind::broadcast: return set(&in, is_root, &out, !is_root || send != recv);
    case Kind::reduce: return set(&in, 1, &out, is_root);
    case Kind::all_gather: return set(&in, 1, cut(recv), n);
    case Kind::reduce_scatter: return set(cut(send), n, &out, 1);
    case Kind::all_to_all: {
      blocks.reserve(2 * n);
      const CBlock* read = cut(send);
      return set(read, n, cut(recv), n);
    }
    case Kind::barrier: return set(nullptr, 0, nullptr, 0);
    case Kind::send:
    case Kind::recv: return;
  }
}

void Call::raise() const {
  throw asked.communicator->explain(handle, asked.plan.get(), asked.kind == Kind::send, asked.root,
                                    asked.num_bytes());
}

void Call::run() {
  prepare();
  const Communicator& on = *asked.communicator;
  if (entry->run(on.engine, &handle, 1, on.timeout_s) == CResult::failed) raise();
}

void Call::wait() {
  constexpr double longest_s = 1e8;  // its own deadline ends it
  if (entry->wait(asked.communicator->engine, handle, longest_s) == CResult::failed) raise();
}

const Communicator* Batch::in_order() const {
  bool is_one = calls_.size() == 1 && !calls_[0]->asked.is_transfer();
  return is_one ? calls_[0]->asked.communicator.get() : nullptr;
}

bool Batch::has_calls(const Communicator& of) const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [&of](const auto& call) { return call->asked.communicator.get() == &of; });
}

std::vector<Batch::Part> Batch::prepared() {
  std::vector<Part> parts;
  for (const auto& call : calls_) {
    call->prepare();
    Communicator* on = call->asked.communicator.get();
    auto is_it = [on](const Part& part) { return part.first == on; };
    auto found = std::find_if(parts.begin(), parts.end(), is_it);
    if (found == parts.end()) found = parts.insert(found, {on, {}});
    found->second.push_back(call->handle);
  }
  return parts;
}

void Batch::start() {
  for (auto& [on, handles] : prepared()) {
    entry->start(on->engine, handles.data(), handles.size(), on->timeout_s);
  }
}

void Batch::run() {
  std::vector<Part> parts = prepared();
  // The others must not wait for the first one's peers.
  bool is_one = parts.size() == 1;
  for (auto& [on, handles] : parts) {
    (is_one ? entry->run : entry->start)(on->engine, handles.data(), handles.size(), on->timeout_s);
  }
  wait();
}

bool Batch::is_done() const {
  return std::all_of(calls_.begin(), calls_.end(),
                     [](const auto& call) { return call->is_done(); });
}

void Batch::wait() {
  Error first;
  for (const auto& call : calls_) {
    try {
      call->wait();
    } catch (Error& error) {
      if (first.code == hcclSuccess) first = std::move(error);
    }
  }
  if (first.code != hcclSuccess) throw first;
}

}  // namespace hccl
