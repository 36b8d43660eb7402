/* The sum over all ranks, in C. The ranks meet at the address of HCCL_COMM_ID:
 *
 *   cc examples/c/all_reduce.c $(hccl-config --cflags --libs) -o all_reduce
 *   export HCCL_COMM_ID=127.0.0.1:45000 HCCL_SECRET=$(openssl rand -hex 32) WORLD_SIZE=2
 *   RANK=0 ./all_reduce & RANK=1 ./all_reduce; wait
 */
#include <hccl/hccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                  \
  if ((call) != hcclSuccess) {                                                       \
    fprintf(stderr, "%s\n", hcclGetLastErrorMessage());                              \
    return 1;                                                                        \
  }

int main(void) {
  int rank = atoi(getenv("RANK")), world_size = atoi(getenv("WORLD_SIZE"));
  hcclUniqueId id = {.length = 0}; /* that of HCCL_COMM_ID */
  hcclComm_t comm;
  CHECK(hcclCommInitRank(&comm, world_size, id, rank));
  float data[4] = {1, 2, 3, rank}, sum[4];
  CHECK(hcclAllReduce(data, sum, 4, hcclFloat, hcclSum, comm, NULL));
  printf("rank %d of %d: %g %g %g %g\n", rank, world_size, sum[0], sum[1], sum[2], sum[3]);
  CHECK(hcclCommDestroy(comm));
  return 0;
}
