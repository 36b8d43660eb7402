// Where finished work requests are reported. A thread that polls or waits drives the queue pairs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/descriptor.h"
#include "progress/idle.h"
#include "progress/sleep.h"
#include "verbs/verbs.h"

namespace hccl {

// The interface by which completion queues drive a queue pair.
class DrivenPair {
 public:
  virtual ~DrivenPair() = default;
  // Makes progress, unless another thread does. True if anything moved.
  virtual bool drive() = 0;
  // Announces a sleep until something arrives for this queue pair, and drives once more. True if
  // anything moved.
  virtual bool announce_sleep(Sleep& sleep) = 0;
};

// The queue overflowed; IBV_EVENT_CQ_ERR.
class CompletionQueueOverflow : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Thread-safe; owned by a shared_ptr. Must outlive its queue pairs.
class CompletionQueue : public SleepFlag, public std::enable_shared_from_this<CompletionQueue> {
 public:
  using Interrupt = std::function<void()>;

  explicit CompletionQueue(size_t capacity);

  // Takes available completions, after driving the queue pairs if there are none; never waits.
  // Returns their number. Throws CompletionQueueOverflow once the queue lost one.
  size_t poll(std::span<Completion> out);
  // As poll, but returns 0 only when the deadline has passed. `interrupt` is called repeatedly and
  // may throw.
  size_t wait(std::span<Completion> out, VerbsClock::time_point deadline,
              const Interrupt& interrupt);

  // Ends the waits of other threads, which then throw InvalidVerb, and waits a moment until they
  // have left, see Guest. Idempotent.
  void close();
  // A caller that close() waits for.
  class Guest {
   public:
    explicit Guest(CompletionQueue& queue) : queue_(queue) { ++queue_.num_guests_; }
    ~Guest() { --queue_.num_guests_; }
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

   private:
    CompletionQueue& queue_;
  };

  // For queue pairs. False: no room, the queue has overflowed.
  bool push(const Completion& completion);
  void attach(DrivenPair* pair);
  void detach(DrivenPair* pair);
  // Free entries; a hint.
  size_t room() const { return capacity_ - size_.load(std::memory_order_relaxed); }
  // Ends the sleep of the threads that wait.
  void wake();

  // Announces a sleep that ends with a completion, and drives once more. True: do not sleep.
  bool prepare_sleep(Sleep& sleep);
  int descriptor() const { return bell_.get(); }
  // Whether a thread other than the progress thread sleeps on it; a hint.
  bool has_caller() const { return num_callers_.load(std::memory_order_relaxed) > 0; }

 private:
  void raise(Sleeper sleeper) override;
  void lower(Sleeper sleeper) override;

  size_t take(std::span<Completion> out);
  bool drive();

  const size_t capacity_;
  const bool may_spin_;
  SpinRecord spins_;
  // Taken before the lock of a queue pair; held while driving, so that none goes away meanwhile.
  std::mutex pairs_mutex_;
  std::vector<DrivenPair*> pairs_;

  std::mutex mutex_;  // ring_, head_; an innermost lock
  std::vector<Completion> ring_;
  uint64_t head_ = 0;
  // Number of completions; stored under the lock, read without it.
  std::atomic<size_t> size_{0};
  std::atomic<bool> overflowed_{false};
  std::atomic<bool> closed_{false};  // stored before wake()
  std::atomic<int> num_guests_{0};   // what close() polls

  // Raised before the last read of size_; pairs with wake(), which comes after the push.
  std::atomic<int> sleepers_{0};
  std::atomic<int> num_callers_{0};  // of these
  const Descriptor bell_;            // eventfd
};

}  // namespace hccl
