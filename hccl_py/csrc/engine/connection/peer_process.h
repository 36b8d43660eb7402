// The process at the other end of a Unix socket, by this host's kernel.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>

#include "base/descriptor.h"

namespace hccl {

// How a process ended: by a signal, with an exit code, or unknown.
struct ProcessEnd {
  std::optional<int> exit_code, signal;
};

// The process that made the other end of a Unix socket; 0: unknown, or this process.
pid_t process_behind(int socket);

// A descriptor that becomes readable when the process has ended, shared by all watchers. nullptr if
// it has been reaped, or the system has none. Any thread.
std::shared_ptr<const Descriptor> open_process(pid_t process);
// Unset while it lives.
std::optional<ProcessEnd> end_of_process(pid_t process, const Descriptor& process_fd);

}  // namespace hccl
