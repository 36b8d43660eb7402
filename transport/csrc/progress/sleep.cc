#include "progress/sleep.h"

#include <algorithm>

namespace hccl {

Sleep::~Sleep() {
  for (const auto& flag : flags_) flag->lower(sleeper_);
}

void Sleep::announce(std::shared_ptr<SleepFlag> flag) {
  flags_.push_back(std::move(flag));
  flags_.back()->raise(sleeper_);
}

int Sleep::left_ms(int longest) const {
  if (until_ == Clock::time_point::max()) return longest;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, longest));
}

void Sleep::wait(int longest_ms) {
  int timeout_ms = left_ms(longest_ms);
  if (timeout_ms > 0) poll(watched_.data(), watched_.size(), timeout_ms);
}

}  // namespace hccl
