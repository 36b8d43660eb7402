/* How communicators are made, divided and left; streams and events; memory. */
#include <pthread.h>
#include <signal.h>
#include <time.h>

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

/* One that nobody joins: it has no numbers yet, and can be left at any time. */
static void check_unfinished(void) {
  hcclConfig_t config = HCCL_CONFIG_INITIALIZER;
  hcclUniqueId id;
  hcclResult_t state;
  config.blocking = 0;
  config.timeout_s = 1;
  for (int aborts = 0; aborts < 2; ++aborts) {
    hcclComm_t comm;
    int number;
    OK(hcclGetUniqueId(&id));
    OK(hcclCommInitRankConfig(&comm, 2, id, 0, &config));
    OK(hcclCommGetAsyncError(comm, &state));
    EXPECT(state == hcclBusy, "%d", (int)state);
    FAILS(hcclBusy, "still being made", hcclCommCount(comm, &number));
    FAILS(hcclBusy, "still being made", hcclCommUserRank(comm, &number));
    OK(aborts ? hcclCommAbort(comm) : hcclCommDestroy(comm));
    FAILS(hcclInvalidArgument, "destroyed", hcclCommCount(comm, &number));
  }
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
  hcclComm_t parts[n];
  OK(hcclGroupStart());
  for (int i = 0; i < n; ++i) {
    OK(hcclCommSplit(comms[i], i == 1 ? HCCL_SPLIT_NOCOLOR : 0, -i, &parts[i], NULL));
  }
  OK(hcclGroupEnd());
  for (int i = 0; i < n; ++i) {
    int number;
    EXPECT((parts[i] == NULL) == (i == 1), "%p", parts[i]);
    if (parts[i] == NULL) continue;
    OK(hcclCommUserRank(parts[i], &number));
    EXPECT(number == (i == 0), "rank %d is rank %d of the part", i, number);
  }
  for (int i = 0; i < n; i += 2) OK(hcclCommDestroy(parts[i]));
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

static void be_slow(void* unused) {
  const struct timespec pause = {0, 50000000};
  (void)unused;
  nanosleep(&pause, NULL);
}

/* Calls wait on a busy stream of rank 0 alone: they still start in the program's order. */
static void check_order(hcclComm_t comm) {
  enum { count = 1 << 20 };
  static char sent[count], received[count];
  double one = 1, sums[2];
  hcclStream_t a, b;
  OK(hcclStreamCreate(&a));
  OK(hcclStreamCreate(&b));
  if (rank == 0) OK(hcclStreamHostFunction(a, be_slow, NULL));
  OK(hcclAllReduce(&one, &sums[0], 1, hcclDouble, hcclSum, comm, a));
  OK(hcclGroupStart());
  OK(hcclAllReduce(&one, &sums[1], 1, hcclDouble, hcclMax, comm, NULL));
  OK(hcclGroupEnd());
  OK(hcclStreamSynchronize(a));
  EXPECT(sums[0] == world_size && sums[1] == 1, "%g and %g", sums[0], sums[1]);
  for (int last = 0; last < 2; ++last) { /* on another stream, or on none */
    OK(hcclStreamHostFunction(a, be_slow, NULL));
    OK(hcclGroupStart());
    OK(hcclSend(sent, count, hcclChar, (rank + 1) % world_size, comm, a));
    OK(hcclRecv(received, count, hcclChar, (rank + world_size - 1) % world_size, comm,
                last ? NULL : b));
    OK(hcclGroupEnd());
    OK(hcclStreamSynchronize(a));
    OK(hcclStreamSynchronize(b));
  }
  OK(hcclStreamDestroy(a));
  OK(hcclStreamDestroy(b));
}

/* The end of a communicator waits for its own calls, and not for those of others. */
static void check_apart(hcclComm_t comm) {
  hcclComm_t other, third;
  hcclStream_t stream;
  char byte = 1;
  OK(hcclStreamCreate(&stream));
  OK(hcclCommSplit(comm, 0, rank, &other, NULL));
  OK(hcclCommSplit(comm, 0, rank, &third, NULL));
  if (rank == 0) OK(hcclRecv(&byte, 1, hcclChar, 1, comm, stream));
  OK(hcclCommDestroy(other));
  OK(hcclBarrier(third, NULL));
  if (rank == 0) EXPECT(hcclStreamQuery(stream) == hcclBusy, "the recv ended without its send");
  OK(hcclBarrier(third, NULL));
  if (rank == 1) OK(hcclSend(&byte, 1, hcclChar, 0, comm, stream));
  OK(hcclStreamSynchronize(stream));
  OK(hcclStreamDestroy(stream));
  OK(hcclBarrier(third, NULL));
  OK(hcclCommDestroy(third));
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
  signal(SIGINT, SIG_DFL);
  hcclComm_t comm = connected(0);
  EXPECT(signal(SIGINT, SIG_DFL) == SIG_DFL, "Python has taken SIGINT");
  check_numbers(comm);
  check_split(comm);
  check_nonblocking();
  check_unfinished();
  check_several_ranks();
  check_streams(comm);
  check_order(comm);
  check_apart(comm);
  check_memory(comm);
  check_threads(comm);
  OK(hcclCommDestroy(comm));
  printf("rank %d: every communicator is right\n", rank);
  return 0;
}
