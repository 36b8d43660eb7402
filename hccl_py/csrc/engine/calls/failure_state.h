// The failure that ends a communicator: what this rank observed, or the coordinator's diagnosis.
//
//   none  --observe()-->  reported  --a diagnosis, or its time is up-->  ended
//
// A reported rank moves no data and holds its calls. Without a coordinator it ends at once.
// Two sides: methods under "driver" are called by the driving thread only; all others by any
// thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/descriptor.h"
#include "engine/calls/failure.h"
#include "engine/calls/request.h"

namespace hccl {

class FailureState {
 public:
  enum class Phase { none, reported, ended };

  FailureState() : event_(new_event()) {}

  // How long a reported failure waits for a diagnosis; 0: this rank decides alone. Before the first
  // request.
  void set_diagnosis_timeout(double seconds) { diagnosis_timeout_s_ = seconds; }
  // Readable after notify(): a failure was reported or ended the calls, or a peer ended.
  int event_fd() const { return event_.get(); }
  void notify() { signal_event(event_); }

  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }
  FailurePtr failure() const { return read(failure_); }  // nullptr unless it has ended
  bool has_report() const { return read(report_) != nullptr; }
  // Returns this rank's report once, then null.
  FailurePtr take_report();
  // Stops reports of this rank's failures. The first diagnosis stays.
  void adopt(Cause cause, std::string diagnosis);
  FailurePtr diagnosis() const { return read(diagnosis_); }

  // ---- driver
  Phase phase() const { return phase_; }
  // True if that changed the phase.
  bool observe(Failure failure);
  // Ends with the report if no diagnosis came in time. True if it did.
  bool expire(Deadline now);
  // Ends with the report, or with `failure`.
  void end(Failure failure);
  Deadline deadline() const { return deadline_; }

 private:
  FailurePtr read(const FailurePtr& guarded) const;
  void end_with(FailurePtr failure);

  const Descriptor event_;  // eventfd
  double diagnosis_timeout_s_ = 0;

  // The driver's.
  Phase phase_ = Phase::none;
  Deadline deadline_ = Deadline::max();  // of `reported`

  // Released after failure_ was written; pairs with the acquire in has_ended().
  std::atomic<bool> has_ended_{false};
  mutable std::mutex mutex_;  // guards the following members
  FailurePtr failure_;
  FailurePtr report_;
  bool is_report_taken_ = false;
  FailurePtr diagnosis_;
};

}  // namespace hccl
