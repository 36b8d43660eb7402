#include "verbs/device.h"

#include <algorithm>

namespace hccl {

namespace {

// How long a queue pair is driven by no thread before the progress thread takes it over.
constexpr auto takeover_time = std::chrono::milliseconds(2);

}  // namespace

void VerbsDevice::attach(QueuePair* pair) {
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({pair, 0});
    if (stopped_) return;
  }
  progress_->start();
  progress_->kick(shared_from_this());
}

void VerbsDevice::detach(QueuePair* pair) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [pair](const Entry& entry) { return entry.pair == pair; });
}

void VerbsDevice::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake();
}

// Drives what no other thread has driven since the last turn.
Drivable::Turn VerbsDevice::progress_turn() {
  std::lock_guard lock(mutex_);
  if (stopped_ || entries_.empty()) return Turn::not_mine;
  bool moved = false;
  for (Entry& entry : entries_) {
    if (entry.pair->num_drives() != entry.num_drives) continue;
    try {
      moved |= entry.pair->drive();
    } catch (const LaneInterrupted&) {
      // Its queue pair is in ERROR by now, and signals are for other threads.
    }
    entry.num_drives = entry.pair->num_drives();
  }
  return moved ? Turn::moved : Turn::quiet;
}

bool VerbsDevice::prepare_sleep(Sleep& sleep) {
  std::lock_guard lock(mutex_);
  if (stopped_) return false;
  bool moved = false;
  for (Entry& entry : entries_) {
    // Another thread drives it: enough to come back now and then.
    if (entry.pair->num_drives() != entry.num_drives || entry.pair->has_caller()) {
      sleep.limit(VerbsClock::now() + takeover_time);
      entry.num_drives = entry.pair->num_drives();
      continue;
    }
    try {
      moved |= entry.pair->announce_sleep(sleep);
    } catch (const LaneInterrupted&) {
      moved = true;
    }
    entry.num_drives = entry.pair->num_drives();
  }
  return !moved;
}

}  // namespace hccl
