// One end of a communicator's lane over an RDMA device, until the communicator has it.
#pragma once

#include <memory>
#include <vector>

#include "verbs/lane_slots.h"
#include "verbs/rdma/queue_pair.h"
#include "verbs/rdma/registrations.h"

namespace hccl {

class RdmaLaneEnd {
 public:
  // How long a queue pair waits for an answer, and how often it asks again: a device cannot ask for ever.
  struct Patience {
    VerbsClock::duration timeout;
    int retry_count;
  };

  // Its queue pairs are in INIT. Throws InvalidVerb, RdmaError.
  RdmaLaneEnd(std::shared_ptr<RdmaRegistrations> registrations, size_t num_pairs, size_t slot_bytes,
              const Patience& patience);

  const std::vector<std::shared_ptr<RdmaQueuePair>>& pairs() const { return pairs_; }
  const std::shared_ptr<RdmaRegistrations>& registrations() const { return registrations_; }
  // Once.
  std::unique_ptr<LaneSlots> take_slots() { return std::move(slots_); }

 private:
  const std::shared_ptr<RdmaRegistrations> registrations_;
  std::vector<std::shared_ptr<RdmaQueuePair>> pairs_;
  std::unique_ptr<LaneSlots> slots_;
};

}  // namespace hccl
