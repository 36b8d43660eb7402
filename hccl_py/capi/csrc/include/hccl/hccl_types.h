/* For programs that include this name: the types stand in hccl.h. */
#include <hccl/hccl.h>
