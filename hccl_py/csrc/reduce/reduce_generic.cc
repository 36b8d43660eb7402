// The kernels in the instruction set that every processor of this architecture has.
#include "reduce/reduce_dispatch.h"

#define HCCL_VECTOR_BYTES 16
#include "reduce/reduce_kernels.h"

namespace hccl {
constinit const ReduceTable reduce_table_generic = make_table("generic");
}  // namespace hccl
