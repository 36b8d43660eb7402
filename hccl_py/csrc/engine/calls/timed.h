// Measures the parts of profiled calls.
#pragma once

#include "base/statistics.h"
#include "engine/calls/request.h"
#include "lanes/lane.h"

namespace hccl {

// Adds its lifetime to a counter, or to a part of the profile, if there is one.
class Timed {
 public:
  explicit Timed(Counter* counter) : counter_(counter) {
    if (counter_ != nullptr) began_ = Clock::now();
  }
  Timed(Profile* profile, Counter Profile::* part)
      : Timed(profile == nullptr ? nullptr : &(profile->*part)) {}
  Timed(Profile* profile, const Lane& lane)
      : Timed(profile, lane.shares_payload() ? &Profile::copy_ns : &Profile::wire_ns) {}
  ~Timed() {
    if (counter_ != nullptr) counter_->add(steady_ns(Clock::now()) - steady_ns(began_));
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Counter* counter_;
  Deadline began_;
};

}  // namespace hccl
