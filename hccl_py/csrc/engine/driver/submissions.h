// Requests for the driver, and the choice of the driving thread.
//
// At most one thread at a time has the right to drive. A thread that submits or waits takes the
// right if it is free; requests that no thread waits for are driven by the progress thread, which
// leaves the right to a waiter. Any thread may call everything here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/calls/request.h"

namespace hccl {

// Which thread submitted last (0: none has), whether several have, and whether one waits in the
// engine now: a rank whose only thread is blocked cannot make another call.
using Caller = std::tuple<size_t, bool, bool>;

class Submissions {
 public:
  enum class Submitted { queued, drives, closed };
  // Queues requests in their order, all or none. `drives`: the caller has the right to drive now.
  Submitted submit(std::span<const RequestPtr> requests);
  // For a collective that is first in its queue while no thread drives: the caller then drives, and
  // the request is not queued. False: no effect.
  bool submit_first(Request& request);
  bool has_incoming() const { return num_incoming_.load(std::memory_order_seq_cst) > 0; }
  // Moves all queued requests to `accepted`, which is empty.
  void take(std::vector<RequestPtr>& accepted);
  bool has_unawaited() const;  // of those queued
  uint64_t sequence() const;   // collectives submitted
  bool is_closed() const;
  void refuse();  // submit() returns `closed` from now on
  Caller caller(bool drives) const;

  bool try_drive();
  // The same for the progress thread: false while a thread waits, which then hands the work back.
  bool try_drive_unawaited();
  void stop_driving();

  enum class Closing { closed_before, drives, busy };
  // After `drives`, no other thread gets the right. `busy`: waits a moment for the driver.
  Closing try_close();

  // A wait is between begin_wait() and end_wait(). True: work that the progress thread left to this
  // waiter goes back to it.
  void begin_wait() { num_waiters_.fetch_add(1, std::memory_order_acquire); }
  bool end_wait();
  enum class Waited { done, drives, time_out, slice_over };
  Waited await(const Request& request, Deadline deadline);
  // A request has ended.
  void notify_waiters();

 private:
  void note_submitter();

  mutable std::mutex mutex_;  // guards what follows, up to the atomics
  std::condition_variable changed_;
  bool driving_ = false;
  bool refuses_ = false;
  bool closed_ = false;
  bool declined_ = false;  // the progress thread left the right to a waiter
  std::vector<RequestPtr> incoming_;
  uint64_t sequence_ = 0;
  std::thread::id submitter_;
  bool several_submitters_ = false;

  // Raised by submit(); pairs with the sleeper's last turn after it raised its flag (see sleep.h):
  // either the sleeper sees the request, or the submitter sees the flag.
  std::atomic<int> num_incoming_{0};
  // Raised by begin_wait(); pairs with the update in notify_waiters(): either that finds the
  // waiter, or the waiter finds its request done.
  std::atomic<int> num_waiters_{0};
};

}  // namespace hccl
