#include "verbs/completion_queue.h"

#include <algorithm>
#include <thread>

namespace hccl {

namespace {

constexpr int num_yields = 200;
constexpr auto look_period = std::chrono::milliseconds(50);
constexpr int longest_sleep_ms = 100;
constexpr auto parting_time = std::chrono::milliseconds(500);
// A peer that only reads and writes causes progress without completions, so the deadline is checked
// at this interval of turns.
constexpr uint32_t turns_per_check = 64;

}  // namespace

CompletionQueue::CompletionQueue(size_t capacity)
    : capacity_(capacity), may_spin_(usable_cores() > 1), ring_(capacity), bell_(new_event()) {
  if (capacity == 0) throw InvalidVerb("a completion queue needs room for one completion");
}

bool CompletionQueue::push(const Completion& completion) {
  bool has_room;
  {
    std::lock_guard lock(mutex_);
    size_t size = size_.load(std::memory_order_relaxed);
    has_room = size < capacity_;
    if (has_room) {
      ring_[(head_ + size) % capacity_] = completion;
      size_.store(size + 1, std::memory_order_seq_cst);
    }
  }
  if (!has_room) overflowed_.store(true, std::memory_order_seq_cst);
  wake();
  return has_room;
}

size_t CompletionQueue::take(std::span<Completion> out) {
  if (size_.load(std::memory_order_acquire) == 0) {
    if (overflowed_.load(std::memory_order_relaxed)) {
      throw CompletionQueueOverflow("the completion queue overflowed: its capacity is " +
                                    std::to_string(capacity_) + ", and completions were lost");
    }
    return 0;
  }
  std::lock_guard lock(mutex_);
  size_t size = size_.load(std::memory_order_relaxed);
  size_t count = std::min(size, out.size());
  for (size_t i = 0; i < count; ++i) out[i] = ring_[(head_ + i) % capacity_];
  head_ += count;
  size_.store(size - count, std::memory_order_relaxed);
  return count;
}

bool CompletionQueue::drive() {
  std::lock_guard lock(pairs_mutex_);
  bool moved = false;
  for (DrivenPair* pair : pairs_) moved |= pair->drive();
  return moved;
}

size_t CompletionQueue::poll(std::span<Completion> out) {
  size_t count = take(out);
  if (count > 0 || out.empty()) return count;
  drive();
  return take(out);
}

size_t CompletionQueue::wait(std::span<Completion> out, VerbsClock::time_point deadline,
                             const Interrupt& interrupt) {
  Idle idle(may_spin_ ? &spins_ : nullptr, num_yields);
  auto next_look = VerbsClock::time_point::min();
  if (out.empty()) return 0;
  for (uint32_t turn = 1;; ++turn) {
    size_t count = take(out);
    if (count > 0) return count;
    if (closed_.load(std::memory_order_seq_cst)) {
      throw InvalidVerb("the completion queue was closed");
    }
    if (drive()) {
      idle.reset();
      if (turn % turns_per_check != 0) continue;
    } else if (idle.turn()) {
      if (!idle.look_at_clock()) continue;
    } else {
      Sleep sleep(Sleeper::caller);
      sleep.limit(deadline);
      if (!prepare_sleep(sleep)) sleep.wait(longest_sleep_ms);
    }
    auto now = VerbsClock::now();
    if (now >= next_look) {
      if (next_look != VerbsClock::time_point::min()) interrupt();
      next_look = now + look_period;
    }
    if (now >= deadline) return poll(out);
  }
}

bool CompletionQueue::prepare_sleep(Sleep& sleep) {
  sleep.announce(shared_from_this());
  sleep.watch(bell_.get());
  bool moved = false;
  {
    std::lock_guard lock(pairs_mutex_);
    for (DrivenPair* pair : pairs_) moved |= pair->announce_sleep(sleep);
  }
  return moved || size_.load(std::memory_order_seq_cst) > 0 ||
         closed_.load(std::memory_order_seq_cst);
}

void CompletionQueue::raise(Sleeper sleeper) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeper == Sleeper::caller) num_callers_.fetch_add(1, std::memory_order_relaxed);
}

void CompletionQueue::lower(Sleeper sleeper) {
  if (sleeper == Sleeper::caller) num_callers_.fetch_sub(1, std::memory_order_relaxed);
  clear_event(bell_);
  // One ring may have been for several sleepers.
  if (sleepers_.fetch_sub(1, std::memory_order_seq_cst) > 1) wake();
}

void CompletionQueue::close() {
  closed_.store(true, std::memory_order_seq_cst);
  auto until = VerbsClock::now() + parting_time;
  while (num_guests_.load(std::memory_order_seq_cst) > 0 && VerbsClock::now() < until) {
    wake();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void CompletionQueue::wake() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  signal_event(bell_);
}

void CompletionQueue::attach(DrivenPair* pair) {
  std::lock_guard lock(pairs_mutex_);
  if (std::find(pairs_.begin(), pairs_.end(), pair) == pairs_.end()) pairs_.push_back(pair);
}

void CompletionQueue::detach(DrivenPair* pair) {
  std::lock_guard lock(pairs_mutex_);
  std::erase(pairs_, pair);
}

}  // namespace hccl
