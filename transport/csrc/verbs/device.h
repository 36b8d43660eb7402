// What plays the network card: the progress thread drives the queue pairs that no thread polls.
//
// So a peer can read and write our memory, and gets its answers, while this process computes. As
// long as a thread polls, the progress thread keeps out of the way.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "progress/progress_thread.h"
#include "verbs/queue_pair.h"

namespace hccl {

// Thread-safe; owned by a shared_ptr. Must outlive its queue pairs.
class VerbsDevice final : public Drivable, public std::enable_shared_from_this<VerbsDevice> {
 public:
  explicit VerbsDevice(std::shared_ptr<ProgressThread> progress) : progress_(std::move(progress)) {}

  void attach(QueuePair* pair);
  void detach(QueuePair* pair);
  // Leaves the progress thread: from now on only polling drives. Idempotent.
  void stop();
  // Ends the sleep of the progress thread: a queue pair has something to do.
  void wake() { progress_->wake(); }

  Turn progress_turn() override;
  bool prepare_sleep(Sleep& sleep) override;

 private:
  struct Entry {
    QueuePair* pair;
    uint64_t num_drives;  // as of our last turn
  };

  const std::shared_ptr<ProgressThread> progress_;
  std::mutex mutex_;  // all below; taken before the lock of a queue pair
  std::vector<Entry> entries_;
  bool stopped_ = false;
};

}  // namespace hccl
