// An ordered queue of calls and functions, and a mark in it.
//
// A call starts at once if nothing before it could change what it reads: then the engine runs it,
// and the thread that waits for the stream drives the engine. All else is left to a thread of the
// stream, which starts when it is needed. A thread that waits takes over what it finds unstarted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "libhccl/communicator.h"

namespace hccl {

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  ~Stream();

  // Returns the number of what was queued, for wait_for. A batch's communicators start their calls
  // in the order in which they were queued, also on different streams.
  uint64_t push(std::unique_ptr<Batch> batch);
  uint64_t push(std::function<void()> function);

  void wait_for(uint64_t number);
  void wait_for_calls(const Communicator& of);
  // Waits until the batch has started, not until it has ended: its peers may need the next one.
  void start(uint64_t number);
  bool has_ended(uint64_t number);
  void drain();        // waits for all that was queued so far
  void synchronize();  // the same; throws the first error since the last call
  bool is_idle();
  void stop();  // waits for its work, then ends its thread

 private:
  struct Item {
    std::unique_ptr<Batch> batch;
    std::function<void()> function;
    bool is_started;
  };
  using Lock = std::unique_lock<std::mutex>;

  bool may_start(const Batch& batch) const;
  void drop_ended();
  void start_front();
  void finish_front(Lock& lock);
  void keep_error(Error& error);
  void need_worker();
  void work();

  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::deque<Item> items_;
  uint64_t num_pushed_ = 0, num_ended_ = 0;
  bool is_busy_ = false;  // a thread is at the first item
  bool is_stopping_ = false;
  Error first_error_;
  std::thread worker_;
};
using StreamPtr = std::shared_ptr<Stream>;

// Starts what communicators have unstarted on another stream: their calls start in order.
void start_queued(Communicator& of, const Stream* on = nullptr);
void start_queued(const Batch& before, const Stream* on = nullptr);

// The time at which a stream got to where the event was recorded.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  void record(const StreamPtr& stream);
  void record_now();
  // What it was recorded on, and the number there; nullptr: nothing.
  std::pair<StreamPtr, uint64_t> position() const;
  void wait() const;
  bool has_ended() const;
  // Throws unless both were recorded and have ended.
  static uint64_t nanoseconds(const Event& start, const Event& end);

 private:
  struct Mark {
    StreamPtr stream;
    uint64_t number = 0;
    std::shared_ptr<std::atomic<int64_t>> at;  // 0: not yet
  };
  mutable std::mutex mutex_;
  Mark mark_;
};

}  // namespace hccl
