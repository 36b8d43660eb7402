#include "libhccl/stream.h"

#include <algorithm>
#include <utility>

namespace hccl {

namespace {

constexpr size_t most_queued = 1024;  // a program that queues more waits, as for a device

}  // namespace

Stream::~Stream() { stop(); }

bool Stream::may_start(const Batch& batch) const {
  if (items_.empty()) return true;
  const Communicator* on = batch.in_order();
  return on != nullptr && std::all_of(items_.begin(), items_.end(), [on](const Item& item) {
           return item.is_started && item.batch != nullptr && item.batch->in_order() == on;
         });
}

uint64_t Stream::push(std::unique_ptr<Batch> batch) {
  start_queued(*batch, this);
  Lock lock(mutex_);
  drop_ended();
  while (items_.size() >= most_queued) {
    is_busy_ ? changed_.wait(lock) : finish_front(lock);
  }
  if (may_start(*batch)) {
    batch->start();
    items_.push_back({std::move(batch), nullptr, true});
    return ++num_pushed_;
  }
  ++num_pushed_;
  for (const auto& call : batch->calls()) {
    Communicator& on = *call->asked.communicator;
    std::lock_guard guard(on.mutex);
    on.queued_on = weak_from_this();
    on.queued_as = num_pushed_;
  }
  items_.push_back({std::move(batch), nullptr, false});
  need_worker();
  return num_pushed_;
}

uint64_t Stream::push(std::function<void()> function) {
  Lock lock(mutex_);
  items_.push_back({nullptr, std::move(function), false});
  need_worker();
  return ++num_pushed_;
}

void Stream::keep_error(Error& error) {
  if (first_error_.code == hcclSuccess) first_error_ = std::move(error);
}

// The items at the front that the engine has ended.
void Stream::drop_ended() {
  while (!is_busy_ && !items_.empty() && items_.front().is_started &&
         items_.front().batch->is_done()) {
    try {
      items_.front().batch->wait();
    } catch (Error& error) {
      keep_error(error);
    }
    items_.pop_front();
    ++num_ended_;
  }
}

void Stream::start_front() {
  Item& item = items_.front();
  if (item.is_started || item.function) return;
  item.batch->start();
  item.is_started = true;
}

void Stream::finish_front(Lock& lock) {
  start_front();
  is_busy_ = true;
  Item& item = items_.front();
  lock.unlock();
  Error failed;
  try {
    item.function ? item.function() : item.batch->wait();
  } catch (Error& error) {
    failed = std::move(error);
  }
  lock.lock();
  if (failed.code != hcclSuccess) keep_error(failed);
  Item ended = std::move(items_.front());
  items_.pop_front();
  ++num_ended_;
  is_busy_ = false;
  changed_.notify_all();
}

void Stream::wait_for(uint64_t number) {
  Lock lock(mutex_);
  while (num_ended_ < number) {
    is_busy_ ? changed_.wait(lock) : finish_front(lock);
  }
}

void Stream::wait_for_calls(const Communicator& of) {
  uint64_t last = 0;
  {
    Lock lock(mutex_);
    uint64_t number = num_ended_;
    for (const Item& item : items_) {
      ++number;
      if (item.batch != nullptr && item.batch->has_calls(of)) last = number;
    }
  }
  wait_for(last);
}

void Stream::start(uint64_t number) {
  Lock lock(mutex_);
  while (num_ended_ + 1 < number) {
    is_busy_ ? changed_.wait(lock) : finish_front(lock);
  }
  if (num_ended_ < number) start_front();
}

bool Stream::has_ended(uint64_t number) {
  Lock lock(mutex_);
  drop_ended();
  return num_ended_ >= number;
}

void Stream::drain() {
  uint64_t number;
  {
    Lock lock(mutex_);
    number = num_pushed_;
  }
  wait_for(number);
}

void Stream::synchronize() {
  drain();
  Lock lock(mutex_);
  Error error = std::exchange(first_error_, {});
  if (error.code != hcclSuccess) throw error;
}

bool Stream::is_idle() {
  Lock lock(mutex_);
  drop_ended();
  return items_.empty();
}

void Stream::need_worker() {
  if (!worker_.joinable()) {
    worker_ = std::thread([this] { work(); });
  }
  changed_.notify_all();
}

void Stream::work() {
  Lock lock(mutex_);
  for (;;) {
    auto is_unstarted = [](const Item& item) { return !item.is_started; };
    auto is_needed = [&] {
      return !is_busy_ && std::any_of(items_.begin(), items_.end(), is_unstarted);
    };
    changed_.wait(lock, [&] { return is_stopping_ || is_needed(); });
    if (is_stopping_) return;
    finish_front(lock);
  }
}

void Stream::stop() {
  drain();
  {
    Lock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  if (!worker_.joinable()) return;
  worker_.get_id() == std::this_thread::get_id() ? worker_.detach() : worker_.join();
}

void start_queued(Communicator& of, const Stream* on) {
  if (of.queued_as == 0) return;
  StreamPtr other;
  uint64_t number;
  {
    std::lock_guard guard(of.mutex);
    other = of.queued_on.lock();
    number = of.queued_as.exchange(0);
    of.queued_on.reset();
  }
  if (other != nullptr && other.get() != on) other->start(number);
}

void start_queued(const Batch& before, const Stream* on) {
  for (const auto& call : before.calls()) start_queued(*call->asked.communicator, on);
}

void Event::record(const StreamPtr& stream) {
  auto at = std::make_shared<std::atomic<int64_t>>(0);
  auto note = [at] { at->store(Clock::now().time_since_epoch().count()); };
  Mark mark{stream, 0, at};
  if (stream->is_idle()) {
    note();
  } else {
    mark.number = stream->push(note);
  }
  std::lock_guard guard(mutex_);
  mark_ = mark;
}

void Event::record_now() {
  int64_t now = Clock::now().time_since_epoch().count();
  std::lock_guard guard(mutex_);
  mark_ = {nullptr, 0, std::make_shared<std::atomic<int64_t>>(now)};
}

std::pair<StreamPtr, uint64_t> Event::position() const {
  std::lock_guard guard(mutex_);
  return {mark_.stream, mark_.number};
}

void Event::wait() const {
  auto [stream, number] = position();
  if (stream != nullptr) stream->wait_for(number);
}

bool Event::has_ended() const {
  auto [stream, number] = position();
  return stream == nullptr || stream->has_ended(number);
}

uint64_t Event::nanoseconds(const Event& start, const Event& end) {
  auto time_of = [](const Event& event, const char* name) {
    std::lock_guard guard(event.mutex_);
    if (event.mark_.at == nullptr) reject(std::string(name) + ": the event was not recorded");
    int64_t at = event.mark_.at->load();
    if (at == 0) throw Error{hcclBusy, std::string(name) + ": the event has not been reached yet"};
    return at;
  };
  int64_t from = time_of(start, "start"), to = time_of(end, "end");
  return to > from ? uint64_t(to - from) : 0;
}

}  // namespace hccl
