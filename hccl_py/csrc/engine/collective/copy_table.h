// How large payloads are copied inside a node: a table, so that the first call of a kind is as fast
// as later ones.
//
// The fastest mode depends on the size, on the rank's work with its payloads, and on whether ranks
// share cores; what the distance of their cores changes is in distance.h. The sender chooses the
// mode and a receiver accepts any, so ranks need not agree.
#pragma once

#include <cstddef>

#include "engine/calls/plan.h"
#include "lanes/lane.h"

namespace hccl {

inline constexpr size_t least_step = 32 << 10;  // of all rows, in bytes

// Touched by the driver only.
class CopyTable {
 public:
  // Another rank of the node, and whether this process can read its memory. Before the first call.
  void add_peer(bool may_read) {
    has_peers_ = true;
    has_single_ |= may_read;
  }
  // Ranks of the node share cores. Before the first call.
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }

  CopyMode mode_of(const Call& call) const {
    // Before reading the ops, for the latency of small calls.
    size_t num_bytes = call.num_bytes();
    bool is_short = !has_peers_ || num_bytes < least_step || call.compression != Compression::none;
    return is_short ? CopyMode::cached : mode_of_long(call, num_bytes);
  }

 private:
  CopyMode mode_of_long(const Call& call, size_t num_bytes) const;

  bool has_peers_ = false, has_single_ = false, is_crowded_ = false;
};

}  // namespace hccl
