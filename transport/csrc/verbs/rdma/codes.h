// InfiniBand's codes for times, sizes and results.
#pragma once

#include "verbs/verbs.h"

namespace hccl {

// The least code whose time, 4.096 us x 2^code, is not shorter; 31 at most.
int timeout_code(VerbsClock::duration timeout);
// The same for the table of waiting times of a receiver that is not ready.
int rnr_timer_code(VerbsClock::duration timer);
// 256, 512, 1024, 2048 or 4096 bytes. Throws InvalidVerb for others.
int mtu_code(size_t num_bytes);
Status status_of(int wc_status);
int wr_opcode(Opcode opcode);

}  // namespace hccl
