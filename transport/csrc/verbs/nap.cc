#include "verbs/nap.h"

#include <algorithm>

namespace hccl {

Nap::~Nap() {
  if (!announced_) return;
  for (const auto& carrier : carriers_) {
    carrier->end_nap();
    if (sleeper_ == Sleeper::user) carrier->user_sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Nap::watch(const std::shared_ptr<Carrier>& carrier, VerbsClock::time_point until) {
  carrier->watch(descriptors_);
  carriers_.push_back(carrier);
  until_ = std::min(until_, until);
}

void Nap::announce() {
  announced_ = true;
  for (const auto& carrier : carriers_) {
    if (sleeper_ == Sleeper::user) carrier->user_sleepers.fetch_add(1, std::memory_order_relaxed);
    carrier->begin_nap();
  }
}

void Nap::sleep(VerbsClock::time_point until) {
  until = std::min(until, until_);
  auto left = std::chrono::ceil<std::chrono::milliseconds>(until - VerbsClock::now()).count();
  if (left <= 0) return;
  ::poll(descriptors_.data(), descriptors_.size(), static_cast<int>(std::min<int64_t>(left, 100)));
}

}  // namespace hccl
