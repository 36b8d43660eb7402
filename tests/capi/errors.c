/* Wrong arguments: a code, a text that names the argument, and a communicator that still works. */
#include "check.h"

static hcclComm_t comm;
static float data[64], result[64];
static const hcclDataType_t f = hcclFloat;

static void check_buffers(void) {
  FAILS(hcclInvalidArgument, "sendbuff", hcclAllReduce(NULL, result, 1, f, hcclSum, comm, NULL));
  FAILS(hcclInvalidArgument, "recvbuff", hcclAllReduce(data, NULL, 1, f, hcclSum, comm, NULL));
  FAILS(hcclInvalidArgument, "recvbuff", hcclBroadcast(data, NULL, 1, f, 0, comm, NULL));
  FAILS(hcclInvalidArgument, "sendbuff", hcclSend(NULL, 1, f, 0, comm, NULL));
  FAILS(hcclInvalidArgument, "recvbuff", hcclRecv(NULL, 1, f, 0, comm, NULL));
  FAILS(hcclInvalidArgument, "apart", hcclAllReduce(data, data + 1, 8, f, hcclSum, comm, NULL));
  FAILS(hcclInvalidArgument, "apart", hcclAllGather(data + 3, data, 16, f, comm, NULL));
  FAILS(hcclInvalidArgument, "apart", hcclReduceScatter(data, data + 3, 16, f, hcclSum, comm, NULL));
  OK(hcclAllReduce(NULL, NULL, 0, f, hcclSum, comm, NULL));
}

static void check_numbers(void) {
  hcclDataType_t no_type = (hcclDataType_t)10, before = (hcclDataType_t)-1;
  FAILS(hcclInvalidArgument, "datatype", hcclAllReduce(data, result, 1, no_type, hcclSum, comm, NULL));
  FAILS(hcclInvalidArgument, "datatype", hcclSend(data, 1, before, 0, comm, NULL));
  FAILS(hcclInvalidArgument, "reduceOp", hcclAllReduce(data, result, 1, f, hcclOpNone, comm, NULL));
  FAILS(hcclInvalidArgument, "reduceOp",
        hcclAllReduce(data, result, 1, f, (hcclRedOp_t)99, comm, NULL));
  FAILS(hcclInvalidArgument, "root", hcclBroadcast(data, result, 1, f, world_size, comm, NULL));
  FAILS(hcclInvalidArgument, "root", hcclReduce(data, result, 1, f, hcclSum, -1, comm, NULL));
  FAILS(hcclInvalidArgument, "peer", hcclSend(data, 1, f, world_size, comm, NULL));
  FAILS(hcclInvalidArgument, "peer", hcclRecv(data, 1, f, -1, comm, NULL));
  FAILS(hcclInvalidArgument, "multiple", hcclAlltoAll(data, result, 33, f, comm, NULL));
  FAILS(hcclInvalidArgument, "count",
        hcclAllReduce(data, result, SIZE_MAX / 2, f, hcclSum, comm, NULL));
}

static void check_handles(void) {
  hcclStream_t stream;
  FAILS(hcclInvalidArgument, "communicator, got NULL",
        hcclAllReduce(data, result, 1, f, hcclSum, NULL, NULL));
  FAILS(hcclInvalidArgument, "communicator", hcclAllReduce(data, result, 1, f, hcclSum, data, NULL));
  FAILS(hcclInvalidArgument, "stream", hcclAllReduce(data, result, 1, f, hcclSum, comm, data));
  OK(hcclStreamCreate(&stream));
  FAILS(hcclInvalidArgument, "communicator", hcclBarrier(stream, NULL));
  OK(hcclStreamDestroy(stream));
  FAILS(hcclInvalidArgument, "destroyed", hcclStreamSynchronize(stream));
  FAILS(hcclInvalidArgument, "hcclMemAlloc", hcclMemFree(data));
  FAILS(hcclInvalidArgument, "ptr", hcclMemAlloc(NULL, 8));
}

static void check_results(void) {
  hcclUniqueId id;
  int number;
  FAILS(hcclInvalidArgument, "NULL", hcclGetVersion(NULL));
  FAILS(hcclInvalidArgument, "NULL", hcclGetUniqueId(NULL));
  FAILS(hcclInvalidArgument, "NULL", hcclCommCount(comm, NULL));
  FAILS(hcclInvalidArgument, "NULL", hcclCommUserRank(comm, NULL));
  FAILS(hcclInvalidArgument, "NULL", hcclCommGetAsyncError(comm, NULL));
  FAILS(hcclInvalidArgument, "communicator", hcclCommCount(NULL, &number));
  memset(&id, 7, sizeof(id));
  hcclComm_t other = data;
  id.length = 256;
  FAILS(hcclInvalidArgument, "unique_id", hcclCommInitRank(&other, world_size, id, rank));
  EXPECT(other == NULL, "%p", other);
  id.length = 5000;
  FAILS(hcclInvalidArgument, "commId", hcclCommInitRank(&other, world_size, id, rank));
  id.length = 0;
  FAILS(hcclInvalidArgument, "HCCL_COMM_ID", hcclCommInitRank(&other, world_size, id, rank));
  FAILS(hcclInvalidArgument, "rank", hcclCommInitRank(&other, 2, id, 2));
  FAILS(hcclInvalidArgument, "nranks", hcclCommInitRank(&other, 0, id, 0));
  FAILS(hcclInvalidArgument, "comm", hcclCommInitRank(NULL, 1, id, 0));
  hcclConfig_t config = HCCL_CONFIG_INITIALIZER;
  config.timeout_s = -1;
  FAILS(hcclInvalidArgument, "timeout_s", hcclCommInitRankConfig(&other, 1, id, 0, &config));
  config.size = 3;
  FAILS(hcclInvalidArgument, "config", hcclCommInitRankConfig(&other, 1, id, 0, &config));
}

static void check_ops(void) {
  hcclRedOp_t op;
  int whole = 3;
  FAILS(hcclInvalidArgument, "floating",
        hcclRedOpCreatePreMulSum(&op, &whole, hcclInt, hcclScalarHostImmediate, comm));
  FAILS(hcclInvalidArgument, "scalar",
        hcclRedOpCreatePreMulSum(&op, NULL, f, hcclScalarHostImmediate, comm));
  OK(hcclRedOpCreatePreMulSum(&op, data, f, hcclScalarHostImmediate, comm));
  FAILS(hcclInvalidArgument, "datatype",
        hcclAllReduce(data, result, 1, hcclDouble, op, comm, NULL));
  OK(hcclRedOpDestroy(op, comm));
  FAILS(hcclInvalidArgument, "op", hcclRedOpDestroy(op, comm));
  FAILS(hcclInvalidArgument, "destroyed", hcclAllReduce(data, result, 1, f, op, comm, NULL));
}

static void check_groups(void) {
  FAILS(hcclInvalidUsage, "hcclGroupStart", hcclGroupEnd());
  OK(hcclGroupStart());
  OK(hcclSend(data, 1, f, (rank + 1) % world_size, comm, NULL));
  FAILS(hcclInvalidArgument, "peer", hcclRecv(data, 1, f, world_size, comm, NULL));
  FAILS(hcclInvalidUsage, "hcclGroupStart", hcclCommFinalize(comm));
  FAILS(hcclInvalidArgument, "peer", hcclGroupEnd());
}

int main(void) {
  hcclResult_t async = hcclBusy;
  begin();
  EXPECT(hcclGetLastErrorMessage() == NULL, "there was no error yet");
  comm = connected(0);
  check_buffers();
  check_numbers();
  check_handles();
  check_results();
  check_ops();
  check_groups();
  OK(hcclCommGetAsyncError(comm, &async));
  EXPECT(async == hcclSuccess && hcclCommGetAsyncErrorMessage(comm) == NULL, "%d", (int)async);
  data[0] = 1;
  OK(hcclAllReduce(data, result, 1, f, hcclSum, comm, NULL));
  EXPECT(result[0] == (float)world_size, "%g", result[0]);
  OK(hcclCommFinalize(comm));
  FAILS(hcclInvalidUsage, "finalized", hcclAllReduce(data, result, 1, f, hcclSum, comm, NULL));
  OK(hcclCommDestroy(comm));
  FAILS(hcclInvalidArgument, "destroyed", hcclAllReduce(data, result, 1, f, hcclSum, comm, NULL));
  FAILS(hcclInvalidArgument, "destroyed", hcclCommDestroy(comm));
  for (int code = -1; code < 40; ++code) {
    EXPECT(strlen(hcclGetErrorString((hcclResult_t)code)) > 3, "code %d", code);
  }
  printf("rank %d: every error is right\n", rank);
  return 0;
}
