#include "reduce.h"
namespace hccl {
const char* reduce_instruction_set() { return "none"; }
}  // namespace hccl
