// The kernels in AVX-512: F, BW, DQ and VL, which every server processor since 2017 has.
#include "reduce/reduce_dispatch.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c")
#endif

#define HCCL_VECTOR_BYTES 64
#include "reduce/reduce_kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace hccl {
constinit const ReduceTable reduce_table_avx512 = make_table("avx512");
}  // namespace hccl

#endif
