// What the functions of the API share.
#pragma once

#include "libhccl/communicator.h"
#include "libhccl/stream.h"

namespace hccl {

// They live until the process ends: its threads may use them until then.
Handles<Communicator>& communicators();
Handles<Stream>& streams();
Handles<Event>& events();

// Queues a call on a stream, or runs it; in a group, keeps it for the group's end.
void submit(Asked asked, void* stream);
// Makes a communicator now, or at the end of this thread's group.
void make_ranks(std::function<void()> make);
// Throws if this thread has a group open.
void require_no_group();
// A rejected call: the group's end starts none of its calls.
void note_in_group(const Error& error);
// Waits for the calls of a communicator on all streams.
void finish_streams(const Communicator& of);

}  // namespace hccl
