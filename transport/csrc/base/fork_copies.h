// Descriptors that a forked child gives up at once: while a copy of a connection is open, its other
// end cannot see that the process which made it has ended.
//
// Python's own forks have a list of steps (transport/process_lifecycle.py). This is for native code
// that forks: the C library calls us in the child.
#pragma once

namespace hccl {

// Any thread. To be taken back before the descriptor is closed.
void give_up_in_children(int fd);
void keep_in_children(int fd);

}  // namespace hccl
