// One rank of a communicator, and a call of it from its arguments to its end.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libhccl/handles.h"
#include "libhccl/python.h"

namespace hccl {

class Stream;

enum class Kind : uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  barrier,
  send,
  recv,
};

// ---- arguments.cc
size_t item_bytes(hcclDataType_t type);
int dtype_of(hcclDataType_t type);       // the engine's number
inline constexpr int first_factor = 16;  // ops from here on are made
void require_floats(hcclDataType_t type);

// The plan of a collective, and the Python object that explains its failures.
struct KeptPlan {
  CPlan* plan;
  PyObject* prepared;
  ~KeptPlan();
};
using PlanPtr = std::shared_ptr<const KeptPlan>;

// A factor of hcclRedOpCreatePreMulSum.
struct Factor {
  hcclDataType_t type;
  const void* on_device;  // read when the call runs; nullptr: `value`
  double value;
};
double read_factor(const void* scalar, hcclDataType_t type);

class Communicator {
 public:
  enum class State { being_made, open, finalized, ended };

  ~Communicator();

  // ---- making; `opened` is what entry.py returns
  void connect(const hcclUniqueId& id, int rank, int size, double timeout_s, std::string name);
  void adopt(const Object& opened, double timeout_s);
  void fail(Error error);

  // ---- any thread, once made
  // Throws while it is being made, and after it failed or was finalized.
  void require_open() const;
  // Throws while it is being made, and if that failed.
  void require_made() const;
  Error failure() const;
  State state() const { return state_; }
  void finalize();
  void close();
  void abort();
  PlanPtr plan(Kind kind, hcclDataType_t type, int op, size_t count, int root);
  // The error of a call that failed. It becomes the communicator's, if that has ended.
  Error explain(const CCall* call, const KeptPlan* plan, bool sends, int peer, size_t num_bytes);

  int rank = 0, size = 1;
  double timeout_s = 600;
  std::atomic<PyObject*> python{nullptr};  // set last: with it the others are valid
  CEngine* engine = nullptr;
  std::atomic<CCall*> spare{nullptr};  // of the last blocking call

  std::mutex mutex;  // of what follows
  std::map<int, Factor> factors;
  // The last call that was queued behind others of its stream, and its number there. 0: none; it is
  // read without the lock first.
  std::weak_ptr<Stream> queued_on;
  std::atomic<uint64_t> queued_as = 0;

 private:
  struct Key {
    size_t count;
    int root;
    Kind kind;
    uint8_t type, op;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      size_t small = size_t(key.kind) | size_t(key.type) << 8 | size_t(key.op) << 16;
      return std::hash<size_t>()(key.count * 31 + (size_t(key.root) << 24 | small));
    }
  };

  std::atomic<State> state_{State::being_made};
  std::unordered_map<Key, PlanPtr, Hash> plans_;  // under `mutex`
  mutable std::mutex failure_mutex_;
  Error failure_;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

// The last failure of any communicator.
Error last_failure();

// A call: what the program asked for, checked and planned.
struct Asked {
  Kind kind;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // of one block
  hcclDataType_t type = hcclUint8;
  int op = hcclSum;
  int root = -1;  // or the peer
  CommunicatorPtr communicator{};
  PlanPtr plan{};                          // of collectives
  std::shared_ptr<const Factor> factor{};  // of a premultiplied sum

  bool is_transfer() const { return kind == Kind::send || kind == Kind::recv; }
  size_t num_bytes() const { return count * item_bytes(type); }
};

// Checks the arguments and finds the plan; throws.
Asked checked(Asked asked);

// A call on its way. Its functions are called by one thread at a time.
class Call {
 public:
  explicit Call(Asked asked);
  ~Call();
  Call(const Call&) = delete;

  // Reads what a copy has to be made of; afterwards the engine may have `handle`.
  void prepare();
  void run();
  bool is_done() const { return entry->state(handle) != CResult::running; }
  void wait();  // throws its failure
  [[noreturn]] void raise() const;

  const Asked asked;
  CCall* handle;

 private:
  std::vector<std::byte> copy_;  // of the input: premultiplied, or to send from in place
};

// Calls that begin together.
class Batch {
 public:
  void add(Asked asked) { calls_.push_back(std::make_unique<Call>(std::move(asked))); }
  // Of one communicator whose calls run in this order anyway; nullptr: there is none.
  const Communicator* in_order() const;
  bool has_calls(const Communicator& of) const;
  void start();
  void run();  // start and wait, on this thread
  bool is_done() const;
  void wait();  // for all; throws the first failure
  const std::vector<std::unique_ptr<Call>>& calls() const { return calls_; }

 private:
  using Part = std::pair<Communicator*, std::vector<CCall*>>;
  std::vector<Part> prepared();

  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace hccl
