// One end of a communicator's lane over an RDMA device, before the communicator owns it.
#pragma once

#include <memory>
#include <vector>

#include "verbs/lane/lane_slots.h"
#include "verbs/rdma/queue_pair.h"
#include "verbs/rdma/registrations.h"

namespace hccl {

class RdmaLaneEnd {
 public:
  // How long a queue pair waits for an answer, and how often it retries: a device cannot retry for
  // ever.
  struct Patience {
    VerbsClock::duration timeout;
    int retry_count;
  };

  using Registrations = std::vector<std::shared_ptr<RdmaRegistrations>>;

  // Makes `num_pairs` queue pairs in INIT on the device of each registration. The
  // lane uses the first device, and the next one when that fails. Throws InvalidVerb, RdmaError.
  RdmaLaneEnd(Registrations devices, size_t num_pairs, size_t slot_bytes, const Patience& patience);

  // Device by device.
  const std::vector<std::shared_ptr<RdmaQueuePair>>& pairs() const { return pairs_; }
  // By device.
  const Registrations& registrations() const { return registrations_; }
  // Drops all devices but the first ones, if the peer has fewer.
  void keep(size_t num_devices);
  // Once.
  std::unique_ptr<LaneSlots> take_slots() { return std::move(slots_); }

 private:
  const Registrations registrations_;
  std::vector<std::shared_ptr<RdmaQueuePair>> pairs_;
  std::unique_ptr<LaneSlots> slots_;
};

}  // namespace hccl
