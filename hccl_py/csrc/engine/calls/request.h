// One collective or transfer from its submission to its end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include "engine/calls/failure.h"
#include "engine/calls/plan.h"

namespace hccl {

class Window;

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// Up to three years: beyond it the clock would overflow.
inline Clock::duration duration_of(double seconds) {
  std::chrono::duration<double> clamped(std::clamp(seconds, 0.0, 1e8));
  return std::chrono::duration_cast<Clock::duration>(clamped);
}

inline uint64_t steady_ns(Clock::time_point time) {
  return static_cast<uint64_t>(std::chrono::nanoseconds(time.time_since_epoch()).count());
}

// The numbers are used in Python (hccl_py/fingerprint.py). From `put` on: of a window.
enum class RequestKind : uint8_t { collective, send, recv, put, signal, wait_signal };
inline constexpr int any_rank = -1;

struct Request {
  RequestKind kind = RequestKind::collective;
  Deadline submitted{};
  Deadline deadline;

  // The driver's: its place in the flight recorder, and its start time.
  uint64_t record = 0;
  uint64_t started_ns = 0;

  std::shared_ptr<const Plan> plan;  // collective
  Call call;                         // collective
  Tiling tiling;                     // collective: of the plan
  uint64_t sequence = 0;             // collective: 1 for the communicator's first
  std::byte byte{};                  // the operand of a barrier

  int peer = any_rank;  // send, recv; of a finished recv: the sender
  uint64_t tag = 0;
  std::byte* address = nullptr;
  size_t num_bytes = 0;

  std::shared_ptr<Window> window;  // put, signal, wait_signal; `tag` is its number
  uint64_t offset = 0;             // put: in the peer's memory; signal, wait_signal: which one

  // Written by the driver before `done`, read by others after it (release, acquire).
  FailurePtr failure;  // nullptr: none
  std::atomic<bool> done{false};

  // A started call that no thread waits for: close() lets it end.
  bool in_background = false;       // set before it is submitted
  std::atomic<int> num_waiters{0};  // pairs with nothing: finish_unawaited() polls

  // Keeps an equal plan of the previous call, because counting references takes time.
  void set_plan(const std::shared_ptr<Plan>& its_plan) {
    call.plan = its_plan.get();
    if (plan == its_plan) return;
    plan = its_plan;
    tiling = Tiling();
  }
  // The first end counts.
  void fail(FailurePtr why) {
    if (is_done()) return;
    failure = std::move(why);
    finish();
  }
  void finish() { done.store(true, std::memory_order_release); }
  bool is_unawaited() const {
    return in_background && num_waiters.load(std::memory_order_relaxed) == 0;
  }
  bool is_done() const { return done.load(std::memory_order_acquire); }
};

using RequestPtr = std::shared_ptr<Request>;

}  // namespace hccl
