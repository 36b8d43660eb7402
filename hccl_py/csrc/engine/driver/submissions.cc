#include "engine/driver/submissions.h"

#include <algorithm>
#include <chrono>

namespace hccl {

namespace {

constexpr auto waiter_slice = std::chrono::milliseconds(50);
constexpr auto closing_slice = std::chrono::milliseconds(1);

}  // namespace

void Submissions::note_submitter() {
  std::thread::id me = std::this_thread::get_id();
  if (submitter_ == me) return;
  several_submitters_ |= submitter_ != std::thread::id();
  submitter_ = me;
}

bool Submissions::submit_first(Request& request) {
  std::lock_guard lock(mutex_);
  if (refuses_ || driving_ || !incoming_.empty()) return false;
  note_submitter();
  request.sequence = ++sequence_;
  driving_ = true;
  return true;
}

Submissions::Submitted Submissions::submit(std::span<const RequestPtr> requests) {
  std::lock_guard lock(mutex_);
  if (refuses_) return Submitted::closed;
  note_submitter();
  for (const RequestPtr& request : requests) {
    if (request->kind == RequestKind::collective) request->sequence = ++sequence_;
    incoming_.push_back(request);
  }
  num_incoming_.fetch_add(static_cast<int>(requests.size()), std::memory_order_seq_cst);
  if (driving_) return Submitted::queued;
  driving_ = true;
  return Submitted::drives;
}

void Submissions::take(std::vector<RequestPtr>& accepted) {
  std::lock_guard lock(mutex_);
  std::swap(incoming_, accepted);
  num_incoming_.store(0, std::memory_order_relaxed);  // the mutex orders it
}

uint64_t Submissions::sequence() const {
  std::lock_guard lock(mutex_);
  return sequence_;
}

bool Submissions::has_unawaited() const {
  std::lock_guard lock(mutex_);
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [](const RequestPtr& request) { return request->is_unawaited(); });
}

void Submissions::refuse() {
  std::lock_guard lock(mutex_);
  refuses_ = true;
}

bool Submissions::is_closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

Caller Submissions::caller(bool drives) const {
  std::lock_guard lock(mutex_);
  bool waits = num_waiters_.load(std::memory_order_relaxed) > 0;
  bool has_called = submitter_ != std::thread::id();
  size_t thread = has_called ? std::hash<std::thread::id>()(submitter_) : 0;
  return {thread, several_submitters_, drives || waits};
}

bool Submissions::try_drive() {
  std::lock_guard lock(mutex_);
  if (driving_ || closed_) return false;
  driving_ = true;
  return true;
}

bool Submissions::try_drive_unawaited() {
  std::lock_guard lock(mutex_);
  if (driving_ || closed_) return false;
  declined_ = num_waiters_.load(std::memory_order_relaxed) > 0;
  driving_ = !declined_;
  return driving_;
}

void Submissions::stop_driving() {
  std::lock_guard lock(mutex_);
  driving_ = false;
  if (num_waiters_.load(std::memory_order_relaxed) > 0) changed_.notify_all();
}

Submissions::Closing Submissions::try_close() {
  std::unique_lock lock(mutex_);
  if (closed_) return Closing::closed_before;
  if (driving_) {
    changed_.wait_for(lock, closing_slice);
    return Closing::busy;
  }
  driving_ = true;
  refuses_ = closed_ = true;
  return Closing::drives;
}

bool Submissions::end_wait() {
  std::lock_guard lock(mutex_);
  bool is_last = num_waiters_.fetch_sub(1, std::memory_order_relaxed) == 1;
  bool is_orphaned = declined_ && is_last && !driving_ && !closed_;
  if (is_orphaned) declined_ = false;
  return is_orphaned;
}

Submissions::Waited Submissions::await(const Request& request, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (request.is_done()) return Waited::done;
  Deadline now = Clock::now();
  if (now >= deadline) return Waited::time_out;
  if (!driving_ && !closed_) {
    driving_ = true;
    return Waited::drives;
  }
  changed_.wait_until(lock, std::min(deadline, now + waiter_slice));
  return request.is_done() ? Waited::done : Waited::slice_over;
}

void Submissions::notify_waiters() {
  // An update, not a load: it comes before or after the one in begin_wait().
  if (num_waiters_.fetch_add(0, std::memory_order_release) == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace hccl
