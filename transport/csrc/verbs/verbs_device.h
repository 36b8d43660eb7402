// The thread that plays the network card: it drives the queue pairs that nobody polls.
//
// So a peer can read and write our memory, and gets its answers, while this process computes. As
// long as somebody polls, the thread keeps out of the way.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "verbs/queue_pair.h"

namespace hccl {

// Thread-safe. Must outlive its queue pairs.
class VerbsDevice {
 public:
  VerbsDevice();
  ~VerbsDevice() { stop(); }

  void attach(QueuePair* pair);
  void detach(QueuePair* pair);
  // Ends the thread; from then on only polling drives. Idempotent.
  void stop();
  // There is something new to look at.
  void wake();

 private:
  struct Entry {
    QueuePair* pair;
    uint64_t num_drives;  // at our last look
    bool naps;            // the thread is about to sleep on it
  };

  void run();
  void rest();
  bool drive();
  bool take_last_look();

  const Descriptor bell_;  // eventfd
  std::atomic<bool> stop_{false};
  // Whether the thread sleeps: raised before its last look, pairs with wake().
  std::atomic<bool> sleeps_{false};
  std::mutex mutex_;  // entries_; taken before the lock of a queue pair
  std::vector<Entry> entries_;
  std::mutex stop_mutex_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace hccl
