// How large payloads are copied inside a node: a table, so that the first call of a kind is as fast
// as later ones.
//
// The faster mode depends on the size, on the rank's work with its payloads, and on whether ranks
// share cores; what the distance of their cores changes is in distance.h. The sender chooses the
// mode and a receiver accepts both, so ranks need not agree.
#pragma once

#include <cstddef>

#include "engine/calls/plan.h"
#include "lanes/lane.h"

namespace hccl {

// Touched by the driver only.
class CopyTable {
 public:
  // Another rank of the node, and whether this process can read its memory. Before the first call.
  void add_peer(bool may_read) { has_single_ |= may_read; }
  // Ranks of the node share cores. Before the first call.
  void set_crowded(bool is_crowded) { is_crowded_ = is_crowded; }

  CopyMode mode_of(const Call& call) const {
    // Before reading the ops, for the latency of small calls.
    size_t num_bytes = call.num_bytes();
    if (!has_single_ || num_bytes < least_bytes || call.compression != Compression::none) {
      return CopyMode::cached;
    }
    return num_bytes >= least_single(call) ? CopyMode::single : CopyMode::cached;
  }

 private:
  static constexpr size_t least_bytes = 32 << 10;

  size_t least_single(const Call& call) const;

  bool has_single_ = false, is_crowded_ = false;
};

}  // namespace hccl
