// The kernels in AVX2 with F16C.
#include "reduce/reduce_dispatch.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif

#define HCCL_VECTOR_BYTES 32
#include "reduce/reduce_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hccl {
constinit const ReduceTable reduce_table_avx2 = make_table("avx2");
}  // namespace hccl

#endif
