// Descriptors that a forked child closes at once: while it has a copy of a connection, the peer
// does not notice the end of the parent.
//
// Python's own forks have a list of steps (transport/process_lifecycle.py). This is for native code
// that forks: the C library calls us in the child.
#pragma once

namespace hccl {

// Any thread. Undo it before the descriptor is closed.
void give_up_in_children(int fd);
void keep_in_children(int fd);

}  // namespace hccl
