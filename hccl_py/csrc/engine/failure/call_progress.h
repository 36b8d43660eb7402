// How far a rank has got in its calls, for its reports.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/failure/failure.h"

namespace hccl {

struct CallProgress {
  uint64_t submitted = 0;  // collectives; the last one's sequence number
  uint64_t finished = 0;   // of these, without error
  uint64_t sequence = 0;   // of the one that runs; 0: none does
  uint64_t fingerprint = 0;
  double timeout_s = 0;  // that it was given
  Stage stage;           // of what runs
  size_t bytes_done = 0;  // of its data, estimated by the ops that are done
  size_t bytes_total = 0;
  std::vector<int> waiting_for;  // ranks without which it cannot go on
  size_t num_transfers = 0;      // sends and receives under way
};

// A rank whose control link has ended.
struct EndedPeer {
  int rank = 0;
  Cause cause = Cause::left;   // left, died or lost
  uint64_t last_sequence = 0;  // left: collectives that it had submitted
  std::optional<int> exit_code, signal;  // died; unset: unknown
};

}  // namespace hccl
