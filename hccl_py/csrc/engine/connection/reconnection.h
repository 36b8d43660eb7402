// Connections between nodes that broke, on their way to Python, and those that replace them, on their
// way back. Any thread may call everything here.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/stream.h"

namespace hccl {

// A connection that broke and may be replaced.
struct BrokenPath {
  int peer = 0;
  int index = 0;  // 0: control, 1 + lane
  int path = 0;
};

struct Replacement {
  BrokenPath path;
  std::shared_ptr<Stream> connection;
};

class Reconnection {
 public:
  Reconnection() : event_(new_event()) {}

  // Readable when take_broken() has something new.
  int event_fd() const { return event_.get(); }
  void report(const BrokenPath& broken) {
    {
      std::lock_guard lock(mutex_);
      broken_.push_back(broken);
    }
    signal_event(event_);
  }
  std::vector<BrokenPath> take_broken() {
    clear_event(event_);
    std::lock_guard lock(mutex_);
    return std::exchange(broken_, {});
  }

  void offer(Replacement replacement) {
    std::lock_guard lock(mutex_);
    offers_.push_back(std::move(replacement));
    // Pairs with the sleeper's last turn, as in Submissions::submit().
    num_offers_.fetch_add(1, std::memory_order_seq_cst);
  }
  bool has_offers() const { return num_offers_.load(std::memory_order_seq_cst) > 0; }
  std::vector<Replacement> take_offers() {
    std::lock_guard lock(mutex_);
    num_offers_.store(0, std::memory_order_seq_cst);
    return std::exchange(offers_, {});
  }

 private:
  const Descriptor event_;  // eventfd
  std::mutex mutex_;        // guards both lists
  std::vector<BrokenPath> broken_;
  std::vector<Replacement> offers_;
  std::atomic<int> num_offers_{0};
};

}  // namespace hccl
