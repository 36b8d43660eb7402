/* What ends a communicator: ranks that differ, a killed rank, abort, a deadline; by argv[1]. */
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static float data[1000], result[1000];
static hcclComm_t comm;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void expect_ended(hcclResult_t code, const char* part) {
  hcclResult_t async = hcclSuccess;
  OK(hcclCommGetAsyncError(comm, &async));
  EXPECT(async == code, "%d", (int)async);
  const char* text = hcclCommGetAsyncErrorMessage(comm);
  EXPECT(text && strstr(text, part), "%s", text ? text : "no text");
  text = hcclCommGetAsyncErrorMessage(NULL);
  EXPECT(text && strstr(text, part), "%s", text ? text : "no text");
  FAILS(code, part, hcclAllReduce(data, result, 1, hcclFloat, hcclSum, comm, NULL));
}

static void differ(hcclStream_t stream) {
  size_t count = rank == 0 ? 10 : 20;
  if (stream == NULL) {
    FAILS(hcclInvalidUsage, "float32[",
          hcclAllReduce(data, result, count, hcclFloat, hcclSum, comm, NULL));
  } else {
    OK(hcclAllReduce(data, result, count, hcclFloat, hcclSum, comm, stream));
    FAILS(hcclInvalidUsage, "float32[", hcclStreamSynchronize(stream));
    OK(hcclStreamSynchronize(stream));
  }
  expect_ended(hcclInvalidUsage, "float32[");
  OK(hcclCommDestroy(comm));
}

/* The last rank dies; the others name it, and go on without it. */
static void lose_a_rank(void) {
  hcclComm_t smaller;
  int count, last = world_size - 1;
  char name[32];
  snprintf(name, sizeof(name), "rank %d", last);
  if (rank == last) kill(getpid(), SIGKILL);
  double began = seconds();
  FAILS(hcclSocketError, name, hcclAllReduce(data, result, 1, hcclFloat, hcclSum, comm, NULL));
  EXPECT(seconds() - began < 10, "%g s", seconds() - began);
  expect_ended(hcclSocketError, name);
  OK(hcclCommShrink(comm, NULL, 0, &smaller, NULL, HCCL_SHRINK_DEFAULT));
  OK(hcclCommCount(smaller, &count));
  EXPECT(count == last, "%d", count);
  data[0] = 1;
  OK(hcclAllReduce(data, result, 1, hcclFloat, hcclSum, smaller, NULL));
  EXPECT(result[0] == (float)last, "%g", result[0]);
  OK(hcclCommDestroy(smaller));
  OK(hcclCommDestroy(comm));
}

/* The last rank dies; the others only poll, and leave while another communicator still waits. */
static void poll_for_a_loss(hcclStream_t stream) {
  hcclComm_t other;
  hcclStream_t busy;
  hcclResult_t async = hcclSuccess;
  int last = world_size - 1;
  OK(hcclStreamCreate(&busy));
  OK(hcclCommSplit(comm, rank == last, rank, &other, NULL));
  for (int r = 0; rank == last && r < last; ++r) OK(hcclRecv(data, 1, hcclFloat, r, comm, NULL));
  if (rank == last) kill(getpid(), SIGKILL);
  OK(hcclSend(data, 1, hcclFloat, last, comm, NULL));
  if (rank == 0) OK(hcclRecv(result, 1, hcclFloat, 1, other, busy));
  OK(hcclAllReduce(data, result + 1, 1, hcclFloat, hcclSum, comm, stream));
  double began = seconds();
  while (async == hcclSuccess) {
    OK(hcclCommGetAsyncError(comm, &async));
    EXPECT(seconds() - began < 10, "%g s", seconds() - began);
  }
  EXPECT(async == hcclSocketError, "%d", (int)async);
  FAILS(hcclSocketError, "rank", hcclStreamQuery(stream));
  OK(hcclStreamQuery(stream));
  OK(hcclCommAbort(comm));
  if (rank == 0) {
    EXPECT(hcclStreamQuery(busy) == hcclBusy, "the recv ended without its send");
    OK(hcclSend(data, 1, hcclFloat, 1, other, NULL));
  } else {
    OK(hcclRecv(data, 1, hcclFloat, 0, other, NULL));
    OK(hcclSend(data, 1, hcclFloat, 0, other, busy));
  }
  OK(hcclStreamDestroy(busy));
  OK(hcclCommDestroy(other));
}

/* The last rank ends without leaving: its communicators say goodbye all the same. */
static void end_without_a_word(void) {
  if (rank == world_size - 1) exit(0);
  FAILS(hcclSocketError, "left", hcclAllReduce(data, result, 1, hcclFloat, hcclSum, comm, NULL));
  OK(hcclCommDestroy(comm));
}

static void* wait_for_peers(void* stream) {
  FAILS(hcclStreamError, "abort", hcclStreamSynchronize(stream));
  return stream;
}

/* Rank 0 makes a call that nobody joins; one thread waits for it, and another aborts it. */
static void abort_it(hcclStream_t stream) {
  if (rank == 0) {
    pthread_t waiting;
    OK(hcclAllReduce(data, result, 1, hcclFloat, hcclSum, comm, stream));
    EXPECT(pthread_create(&waiting, NULL, wait_for_peers, stream) == 0, "pthread_create");
    OK(hcclCommAbort(comm));
    pthread_join(waiting, NULL);
    FAILS(hcclInvalidArgument, "destroyed",
          hcclAllReduce(data, result, 1, hcclFloat, hcclSum, comm, NULL));
  } else {
    FAILS(hcclStreamError, "hcclCommAbort", hcclRecv(data, 1000, hcclFloat, 0, comm, NULL));
    expect_ended(hcclStreamError, "hcclCommAbort");
    OK(hcclCommDestroy(comm));
  }
}

static void miss_a_deadline(void) {
  hcclConfig_t config = HCCL_CONFIG_INITIALIZER;
  hcclComm_t other;
  config.timeout_s = 0.5;
  OK(hcclCommSplit(comm, 0, rank, &other, &config));
  if (rank == 0) {
    double began = seconds();
    FAILS(hcclSystemError, "Timed out",
          hcclAllReduce(data, result, 1, hcclFloat, hcclSum, other, NULL));
    EXPECT(seconds() - began > 0.4 && seconds() - began < 10, "%g s", seconds() - began);
  }
  OK(hcclBarrier(comm, NULL));
  OK(hcclCommDestroy(other));
  OK(hcclCommDestroy(comm));
}

int main(int argc, char** argv) {
  hcclStream_t stream;
  begin();
  EXPECT(argc == 2, "expected the name of a case");
  comm = connected(0);
  OK(hcclStreamCreate(&stream));
  if (!strcmp(argv[1], "mismatch")) differ(NULL);
  if (!strcmp(argv[1], "mismatch-on-stream")) differ(stream);
  if (!strcmp(argv[1], "killed")) lose_a_rank();
  if (!strcmp(argv[1], "polled")) poll_for_a_loss(stream);
  if (!strcmp(argv[1], "ended")) end_without_a_word();
  if (!strcmp(argv[1], "abort")) abort_it(stream);
  if (!strcmp(argv[1], "deadline")) miss_a_deadline();
  OK(hcclStreamDestroy(stream));
  printf("rank %d: every failure is right\n", rank);
  return 0;
}
