// The engine for programs in C: a table of functions that `_core.c_entry`, a capsule, points to.
// hccl_py/capi/csrc calls it. No exception and no type of C++ crosses it, because the two sides are
// compiled and linked apart. Only functions marked GIL touch Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl {

struct CEngine;  // a communicator's engine, which it keeps alive
struct CPlan;    // what makes a collective: its plan, types and fingerprint
struct CCall;    // one call; it can be submitted again after it has ended

struct CBlock {
  void* address;
  size_t num_bytes;
};

enum class CResult : int { done, running, failed };

struct CEntry {
  static constexpr uint32_t current = 1;
  static constexpr const char* name = "hccl_py.transport._core.c_entry";

  uint32_t version;
  CEngine* (*open)(void* engine);       // GIL; a Communicator of _core
  void (*close)(CEngine* engine);       // GIL
  CPlan* (*keep_plan)(void* prepared);  // GIL; a Prepared of _core
  void (*drop_plan)(CPlan* plan);       // any thread
  CCall* (*make_call)();
  void (*drop_call)(CCall* call);  // after its end
  // What the call does, until it is set again. The plan may be dropped afterwards.
  void (*set_collective)(CCall* call, const CPlan* plan, const CBlock* read, size_t num_read,
                         const CBlock* written, size_t num_written);
  void (*set_transfer)(CCall* call, bool sends, int peer, const CBlock* memory);
  // Submits calls in order and at once; `done` if all have ended well. A call that failed says so.
  CResult (*run)(CEngine* engine, CCall* const* calls, size_t num_calls, double timeout_s);
  CResult (*start)(CEngine* engine, CCall* const* calls, size_t num_calls, double timeout_s);
  CResult (*wait)(CEngine* engine, CCall* call, double timeout_s);
  CResult (*state)(const CCall* call);
  void* (*failure)(const CCall* call);  // GIL; a new CommunicatorFailed, or null: none
  bool (*multiply)(int dtype, void* to, const void* from, size_t count, double factor);
};

}  // namespace hccl
