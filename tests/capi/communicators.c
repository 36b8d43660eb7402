/* How communicators are made, divided and left; streams and events; memory. */
#include <pthread.h>

#include "check.h"

static double summed(hcclComm_t comm, double mine) {
  double sum = -1;
  OK(hcclAllReduce(&mine, &sum, 1, hcclDouble, hcclSum, comm, NULL));
  return sum;
}

static void check_numbers(hcclComm_t comm) {
  int number = -1, version = 0;
  OK(hcclCommCount(comm, &number));
  EXPECT(number == world_size, "%d", number);
  OK(hcclCommUserRank(comm, &number));
  EXPECT(number == rank, "%d", number);
  OK(hcclCommSynDevice(comm, &number));
  EXPECT(number == 0, "%d", number);
  OK(hcclGetVersion(&version));
  EXPECT(version == HCCL_VERSION(2, 6, 4), "%d", version);
}

static void check_split(hcclComm_t comm) {
  hcclComm_t half, none, rest;
  int number, excluded = world_size - 1;
  OK(hcclCommSplit(comm, rank % 2, -rank, &half, NULL));
  OK(hcclCommUserRank(half, &number));
  EXPECT(number == (world_size - 1 - rank) / 2, "rank %d in the half", number);
  EXPECT(summed(half, 1) == (world_size + 1 - rank % 2) / 2, "sum of the half");
  OK(hcclCommDestroy(half));
  OK(hcclCommSplit(comm, rank == 0 ? HCCL_SPLIT_NOCOLOR : 5, 0, &none, NULL));
  EXPECT((none == NULL) == (rank == 0), "%p", none);
  if (none) OK(hcclCommDestroy(none));
  if (rank != excluded) {
    OK(hcclCommShrink(comm, &excluded, 1, &rest, NULL, HCCL_SHRINK_DEFAULT));
    EXPECT(summed(rest, 1) == world_size - 1, "sum of the rest");
    OK(hcclCommDestroy(rest));
  }
  OK(hcclBarrier(comm, NULL));
}

static void await_made(hcclComm_t comm) {
  hcclResult_t state = hcclBusy;
  while (state == hcclBusy) OK(hcclCommGetAsyncError(comm, &state));
  EXPECT(state == hcclSuccess, "%s", hcclCommGetAsyncErrorMessage(comm));
}

static void check_nonblocking(void) {
  hcclConfig_t config = HCCL_CONFIG_INITIALIZER;
  hcclComm_t comm, part, rest;
  int excluded = world_size - 1;
  config.blocking = 0;
  config.name = "later";
  OK(hcclCommInitRankConfig(&comm, world_size, id_of(1), rank, &config));
  await_made(comm);
  EXPECT(summed(comm, rank) == world_size * (world_size - 1) / 2, "sum");
  OK(hcclCommSplit(comm, 0, 0, &part, &config));
  await_made(part);
  EXPECT(summed(part, 1) == world_size, "sum of the part");
  if (rank != excluded) {
    OK(hcclCommShrink(part, &excluded, 1, &rest, &config, HCCL_SHRINK_DEFAULT));
    await_made(rest);
    EXPECT(summed(rest, 1) == world_size - 1, "sum of the rest");
    OK(hcclCommDestroy(rest));
  }
  OK(hcclBarrier(part, NULL));
  OK(hcclCommDestroy(part));
  OK(hcclCommDestroy(comm));
}

/* One thread has all ranks of another communicator. */
static void check_several_ranks(void) {
  enum { n = 3 };
  hcclComm_t comms[n];
  float mine[n], sums[n] = {0};
  OK(hcclCommInitAll(comms, n, NULL));
  OK(hcclGroupStart());
  for (int i = 0; i < n; ++i) {
    mine[i] = (float)i;
    OK(hcclAllReduce(&mine[i], &sums[i], 1, hcclFloat, hcclSum, comms[i], NULL));
  }
  OK(hcclGroupEnd());
  for (int i = 0; i < n; ++i) EXPECT(sums[i] == 3, "%g", sums[i]);
  for (int i = 0; i < n; ++i) OK(hcclCommDestroy(comms[i]));
}

static void set_to_two(void* number) { *(double*)number = 2; }

/* A function between two calls: each sees what the one before it wrote. */
static void check_streams(hcclComm_t comm) {
  double number = 1, first = 0, second = 0;
  uint64_t elapsed = 1;
  hcclStream_t a, b;
  hcclEvent_t begin, end;
  OK(hcclStreamCreate(&a));
  OK(hcclStreamCreate(&b));
  OK(hcclEventCreate(&begin));
  OK(hcclEventCreate(&end));
  FAILS(hcclInvalidArgument, "not recorded", hcclEventElapsedTime(&elapsed, begin, end));
  OK(hcclEventQuery(end));
  OK(hcclEventRecord(begin, a));
  OK(hcclAllReduce(&number, &first, 1, hcclDouble, hcclSum, comm, a));
  OK(hcclStreamHostFunction(a, set_to_two, &number));
  OK(hcclEventRecord(end, a));
  OK(hcclStreamWaitEvent(b, end));
  OK(hcclAllReduce(&number, &second, 1, hcclDouble, hcclSum, comm, b));
  OK(hcclStreamSynchronize(b));
  EXPECT(first == world_size && second == 2 * world_size, "%g and %g", first, second);
  OK(hcclEventSynchronize(end));
  OK(hcclStreamQuery(a));
  OK(hcclEventElapsedTime(&elapsed, begin, end));
  EXPECT(elapsed > 0 && elapsed < 60000000000u, "%llu ns", (unsigned long long)elapsed);
  /* Many calls, of which each needs the one before it; alternately on two streams. */
  number = 1;
  for (int i = 0; i < 2000; ++i) {
    hcclStream_t on = i % 3 ? a : b;
    if (i % 3 < 2) OK(hcclStreamSynchronize(i % 3 ? b : a));
    OK(hcclAllReduce(&number, &number, 1, hcclDouble, hcclAvg, comm, on));
  }
  OK(hcclStreamSynchronize(a));
  OK(hcclStreamSynchronize(b));
  EXPECT(number == 1, "%g", number);
  OK(hcclEventDestroy(begin));
  OK(hcclEventDestroy(end));
  OK(hcclStreamDestroy(a));
  OK(hcclStreamDestroy(b));
}

static void check_memory(hcclComm_t comm) {
  enum { count = 1 << 20 };
  float *in, *out;
  void* handle;
  OK(hcclMemAlloc((void**)&in, count * sizeof(float)));
  OK(hcclMemAlloc((void**)&out, count * sizeof(float)));
  OK(hcclCommRegister(comm, in, count * sizeof(float), &handle));
  for (int i = 0; i < count; ++i) in[i] = (float)(i % 100);
  OK(hcclAllReduce(in, out, count, hcclFloat, hcclSum, comm, NULL));
  for (int i = 0; i < count; ++i) EXPECT(out[i] == (float)(i % 100 * world_size), "%d", i);
  OK(hcclCommDeregister(comm, handle));
  FAILS(hcclInvalidArgument, "hcclCommRegister", hcclCommDeregister(comm, handle));
  OK(hcclMemFree(in));
  OK(hcclMemFree(out));
  OK(hcclMemFree(NULL));
}

static void* many_calls(void* comm) {
  for (int i = 0; i < 500; ++i) {
    float mine = 1, sum = 0;
    OK(hcclAllReduce(&mine, &sum, 1, hcclFloat, hcclSum, comm, NULL));
    EXPECT(sum == (float)world_size, "%g", sum);
  }
  return NULL;
}

/* Threads of one rank share a communicator; their calls are alike, so any order fits. */
static void check_threads(hcclComm_t comm) {
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) {
    EXPECT(!pthread_create(&threads[i], NULL, many_calls, comm), "pthread_create");
  }
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
}

int main(void) {
  begin();
  hcclComm_t comm = connected(0);
  check_numbers(comm);
  check_split(comm);
  check_nonblocking();
  check_several_ranks();
  check_streams(comm);
  check_memory(comm);
  check_threads(comm);
  OK(hcclCommDestroy(comm));
  printf("rank %d: every communicator is right\n", rank);
  return 0;
}
