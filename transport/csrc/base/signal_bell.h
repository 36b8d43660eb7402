// A signal that writes to an eventfd. A Python handler would run only in the main thread, between
// two bytecodes, which a program that hangs may never reach.
#pragma once

namespace hccl {

// Makes `signal` write to `event_fd` (borrowed). False, without effect, if the program or its
// parent has already set the signal's action.
bool ring_on_signal(int signal, int event_fd);
// Makes the signal do nothing; then no handler uses the descriptor, which may be closed.
// Idempotent.
void silence_signal_bell();
// In a forked child, in which the handlers of the parent's other threads do not exist.
void forget_signal_bell();

}  // namespace hccl
