// The kernels in AVX2 with F16C.
#include "reduce/reduce_dispatch.h"

#if defined(__x86_64__)
#define HCCL_TARGET "avx2,f16c"
#define HCCL_VECTOR_BYTES 32
#include "reduce/reduce_kernels.h"

namespace hccl {
constinit const ReduceTable reduce_table_avx2 = make_table("avx2");
}  // namespace hccl
#endif
