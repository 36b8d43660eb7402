// CRC32C (Castagnoli), as iSCSI and RoCE's software companions use it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl {

// The sum of `size` bytes, by the processor's own instruction where it has one.
uint32_t crc32c(const void* bytes, size_t size);
// The same by table, for processors without, and for tests.
uint32_t crc32c_by_table(const void* bytes, size_t size);

}  // namespace hccl
