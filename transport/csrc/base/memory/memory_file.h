// Memory behind a descriptor, with a substitute if a sandbox forbids such memory.
#pragma once

#include "base/descriptor.h"

namespace hccl {

// As sealed_memory(). If that is forbidden: private memory of this process, for a rank that shares
// none (network/system_calls.py). Map it once.
inline Descriptor memory_file(size_t num_bytes, const char* name) {
  try {
    return sealed_memory(num_bytes, name);
  } catch (const std::system_error& error) {
    int code = error.code().value();
    if (code != EPERM && code != EACCES && code != ENOSYS) throw;
    return opened(open("/dev/zero", O_RDWR | O_CLOEXEC), "open /dev/zero");
  }
}

}  // namespace hccl
