/* Every call, type, op and way (in place, on a stream, in a group) against sums made here. */
#include "check.h"

enum { guard = 16, most = 70001 };
static const size_t counts[] = {0, 1, 7, 1000, most};
static hcclComm_t comm;
static hcclStream_t stream;
static char *in, *out;

/* Small enough that every sum and product of four is exact in every type. */
static double value_of(int from, size_t i) { return 1 + (double)((i * 7 + (size_t)from * 3) % 3); }

static double reduced(size_t i, hcclRedOp_t op) {
  double result = value_of(0, i);
  for (int r = 1; r < world_size; ++r) {
    double next = value_of(r, i);
    if (op == hcclSum || op == hcclAvg) result += next;
    if (op == hcclProd) result *= next;
    if (op == hcclMin && next < result) result = next;
    if (op == hcclMax && next > result) result = next;
  }
  return op == hcclAvg ? result / world_size : result;
}

static void fill(char* memory, size_t count, hcclDataType_t type) {
  for (size_t i = 0; i < count; ++i) store(memory, i, type, value_of(rank, i));
}

/* Memory behind `count` elements must be as it was. */
static char* cleared(size_t count, hcclDataType_t type) {
  memset(out, 0x5a, count * type_bytes[type] + guard);
  return out;
}

static void expect(size_t i, double expected, hcclDataType_t type, const char* call) {
  if (type < hcclFloat16) expected = (double)(long long)expected;
  double got = load(out, i, type);
  EXPECT(got == expected, "%s of type %d: element %zu is %g, not %g", call, (int)type, i, got,
         expected);
}

static void finish(size_t count, hcclDataType_t type, hcclStream_t on) {
  OK(hcclStreamSynchronize(on));
  for (size_t i = 0; i < guard; ++i) {
    EXPECT(out[count * type_bytes[type] + i] == 0x5a, "byte %zu behind the output", i);
  }
}

static void check_reductions(hcclDataType_t type, hcclRedOp_t op, size_t count, hcclStream_t on) {
  size_t n = (size_t)world_size;
  int root = world_size - 1;
  fill(in, count, type);
  cleared(count, type);
  OK(hcclAllReduce(in, out, count, type, op, comm, on));
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) expect(i, reduced(i, op), type, "all_reduce");

  fill(out, count, type);
  OK(hcclAllReduce(out, out, count, type, op, comm, on));
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) expect(i, reduced(i, op), type, "all_reduce in place");

  cleared(count, type);
  OK(hcclReduce(in, rank == root ? out : NULL, count, type, op, root, comm, on));
  finish(count, type, on);
  for (size_t i = 0; rank == root && i < count; ++i) expect(i, reduced(i, op), type, "reduce");

  fill(in, count * n, type);
  cleared(count, type);
  OK(hcclReduceScatter(in, out, count, type, op, comm, on));
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) {
    expect(i, reduced((size_t)rank * count + i, op), type, "reduce_scatter");
  }
}

static void check_moves(hcclDataType_t type, size_t count, hcclStream_t on) {
  size_t n = (size_t)world_size;
  int root = world_size - 1, next = (rank + 1) % world_size, last = (rank + root) % world_size;
  fill(in, count, type);
  cleared(count, type);
  OK(hcclBroadcast(rank == root ? in : NULL, out, count, type, root, comm, on));
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) expect(i, value_of(root, i), type, "broadcast");

  cleared(count, type);
  fill(out, count, type);
  OK(hcclBcast(out, count, type, 0, comm, on));
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) expect(i, value_of(0, i), type, "bcast");

  cleared(count * n, type);
  OK(hcclAllGather(in, out, count, type, comm, on));
  finish(count * n, type, on);
  for (size_t i = 0; i < count * n; ++i) {
    expect(i, value_of((int)(i / count), i % count), type, "all_gather");
  }

  cleared(count * n, type);
  char* mine = out + (size_t)rank * count * type_bytes[type];
  fill(mine, count, type);
  OK(hcclAllGather(mine, out, count, type, comm, on));
  finish(count * n, type, on);
  for (size_t i = 0; i < count * n; ++i) {
    expect(i, value_of((int)(i / count), i % count), type, "all_gather in place");
  }

  for (int in_place = 0; in_place < 2; ++in_place) {
    fill(in, count * n, type);
    cleared(count * n, type);
    if (in_place) fill(out, count * n, type);
    OK(hcclAlltoAll(in_place ? out : in, out, count * n, type, comm, on));
    finish(count * n, type, on);
    for (size_t i = 0; i < count * n; ++i) {
      expect(i, value_of((int)(i / count), (size_t)rank * count + i % count), type, "all_to_all");
    }
  }

  fill(in, count, type);
  cleared(count, type);
  OK(hcclGroupStart());
  OK(hcclGroupStart());
  OK(hcclSend(in, count, type, next, comm, on));
  OK(hcclGroupEnd());
  OK(hcclRecv(out, count, type, last, comm, on));
  OK(hcclGroupEnd());
  finish(count, type, on);
  for (size_t i = 0; i < count; ++i) expect(i, value_of(last, i), type, "send and recv");
}

static void check_premultiplied(hcclDataType_t type, hcclScalarResidence_t where) {
  char scalar[8];
  hcclRedOp_t op;
  store(scalar, 0, type, rank + 0.5);
  OK(hcclRedOpCreatePreMulSum(&op, scalar, type, where, comm));
  if (where == hcclScalarHostImmediate) store(scalar, 0, type, 100);
  fill(in, 1000, type);
  cleared(1000, type);
  OK(hcclAllReduce(in, out, 1000, type, op, comm, stream));
  finish(1000, type, stream);
  for (size_t i = 0; i < 1000; ++i) {
    double sum = 0;
    for (int r = 0; r < world_size; ++r) sum += value_of(r, i) * (r + 0.5);
    expect(i, sum, type, "premultiplied sum");
  }
  OK(hcclRedOpDestroy(op, comm));
}

static void check_group_of_collectives(void) {
  double sums[3], mine[3] = {rank, rank + 1, rank + 2};
  OK(hcclGroupStart());
  for (int i = 0; i < 3; ++i) {
    OK(hcclAllReduce(&mine[i], &sums[i], 1, hcclDouble, hcclSum, comm, i == 1 ? stream : NULL));
  }
  OK(hcclGroupEnd());
  OK(hcclStreamSynchronize(stream));
  for (int i = 0; i < 3; ++i) {
    double expected = world_size * (world_size - 1) / 2 + i * world_size;
    EXPECT(sums[i] == expected, "%g, not %g", sums[i], expected);
  }
}

/* An argument: how many of the counts, the least first. */
int main(int argc, char** argv) {
  size_t num_counts = argc > 1 ? strtoul(argv[1], NULL, 10) : sizeof(counts) / sizeof(*counts);
  begin();
  comm = connected(0);
  OK(hcclStreamCreate(&stream));
  OK(hcclMemAlloc((void**)&in, (size_t)world_size * most * 8 + guard));
  OK(hcclMemAlloc((void**)&out, (size_t)world_size * most * 8 + guard));
  for (size_t c = 0; c < num_counts; ++c) {
    for (int type = 0; type < hcclNumTypes; ++type) {
      hcclStream_t on = (c + (size_t)type) % 2 ? stream : NULL;
      for (int op = 0; op < hcclOpNone; ++op) {
        check_reductions((hcclDataType_t)type, (hcclRedOp_t)op, counts[c], on);
      }
      check_moves((hcclDataType_t)type, counts[c], on);
    }
  }
  const hcclDataType_t floats[] = {hcclFloat16, hcclBfloat16, hcclFloat32, hcclFloat64};
  for (int i = 0; i < 4; ++i) {
    check_premultiplied(floats[i], hcclScalarHostImmediate);
    check_premultiplied(floats[i], hcclScalarDevice);
  }
  check_group_of_collectives();
  OK(hcclBarrier(comm, NULL));
  OK(hcclMemFree(in));
  OK(hcclMemFree(out));
  OK(hcclStreamDestroy(stream));
  OK(hcclCommDestroy(comm));
  printf("rank %d: every result is right\n", rank);
  return 0;
}
