// The kernels in AVX-512: F, BW, DQ and VL, which server processors have had since 2017.
#include "reduce/reduce_dispatch.h"

#if defined(__x86_64__)
#define HCCL_TARGET "avx512f,avx512bw,avx512dq,avx512vl,f16c"
#define HCCL_VECTOR_BYTES 64
#include "reduce/reduce_kernels.h"

namespace hccl {
constinit const ReduceTable reduce_table_avx512 = make_table("avx512");
}  // namespace hccl
#endif
