// A signal that rings an eventfd. Not a Python handler: those run in the main thread only, between
// two of its bytecodes, and a program that hangs, in our code or anybody else's, may never get
// there.
#pragma once

namespace hccl {

// Has `signal` ring `event_fd` (borrowed) from now on. False, and nothing changed, if the program
// or its parent decided already what the signal does.
bool ring_on_signal(int signal, int event_fd);
// From now on the signal does nothing, and no handler uses the descriptor any more: it may be
// closed. Idempotent.
void silence_signal_bell();
// In a forked child, where the handlers of the parent's other threads do not go on.
void forget_signal_bell();

}  // namespace hccl
