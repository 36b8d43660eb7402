// Checks of a queue pair's calls before they have an effect. All throw InvalidVerb.
#pragma once

#include "verbs/verbs.h"

namespace hccl {

void check_attributes(const QueuePairAttributes& attributes);
// Checks a step forward, RESET -> INIT -> RTR -> RTS, or to the current state, unless it is ERROR.
void check_step(QueuePairState from, QueuePairState to);
// Bytes of all pieces.
size_t checked_length(std::span<const ScatterGather> pieces, size_t max_pieces);
// Bytes of a request to be posted.
size_t checked_length(const SendRequest& request, const QueuePairAttributes& attributes);

}  // namespace hccl
