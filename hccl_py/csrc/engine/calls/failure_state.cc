#include "engine/calls/failure_state.h"

#include <utility>

namespace hccl {

FailurePtr FailureState::read(const FailurePtr& guarded) const {
  std::lock_guard lock(mutex_);
  return guarded;
}

FailurePtr FailureState::take_report() {
  clear_event(event_);
  std::lock_guard lock(mutex_);
  if (!report_ || std::exchange(is_report_taken_, true)) return nullptr;
  return report_;
}

void FailureState::adopt(Cause cause, std::string diagnosis) {
  Failure failure = observed(cause, any_rank);
  failure.diagnosis = std::move(diagnosis);
  std::lock_guard lock(mutex_);
  if (!failure_ && !diagnosis_) diagnosis_ = std::make_shared<Failure>(std::move(failure));
}

bool FailureState::observe(Failure failure) {
  if (phase_ == Phase::ended) return false;
  bool is_diagnosed = !failure.diagnosis.empty();
  if (is_diagnosed || diagnosis_timeout_s_ <= 0) {
    end_with(std::make_shared<Failure>(std::move(failure)));
    return true;
  }
  if (phase_ == Phase::reported) return false;
  phase_ = Phase::reported;
  deadline_ = Clock::now() + duration_of(diagnosis_timeout_s_);
  {
    std::lock_guard lock(mutex_);
    // A failure that this rank observes after the diagnosis is a consequence of it.
    is_report_taken_ = diagnosis_ != nullptr;
    report_ = diagnosis_ ? diagnosis_ : std::make_shared<Failure>(std::move(failure));
  }
  notify();
  return true;
}

bool FailureState::expire(Deadline now) {
  if (phase_ != Phase::reported || now < deadline_) return false;
  end({});
  return true;
}

void FailureState::end(Failure failure) {
  if (phase_ == Phase::ended) return;
  FailurePtr report = read(report_);
  end_with(report ? report : std::make_shared<Failure>(std::move(failure)));
}

void FailureState::end_with(FailurePtr failure) {
  phase_ = Phase::ended;
  deadline_ = Deadline::max();
  {
    std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  has_ended_.store(true, std::memory_order_release);
  notify();
}

}  // namespace hccl
