// The sum over all ranks, in C++, on a stream. Start it as examples/c/all_reduce.c says:
//
//   c++ examples/c/all_reduce.cc $(hccl-config --cflags --libs) -o all_reduce
#include <hccl/hccl.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

static void check(hcclResult_t result) {
  if (result != hcclSuccess) throw std::runtime_error(hcclGetLastErrorMessage());
}

int main() try {
  int rank = std::atoi(std::getenv("RANK")), world_size = std::atoi(std::getenv("WORLD_SIZE"));
  hcclComm_t comm;
  hcclStream_t stream;
  check(hcclCommInitRank(&comm, world_size, hcclUniqueId{}, rank));  // that of HCCL_COMM_ID
  check(hcclStreamCreate(&stream));
  std::vector<double> data(1000, rank + 1);
  for (int step = 0; step < 3; ++step) {  // the stream keeps the order
    check(hcclAllReduce(data.data(), data.data(), data.size(), hcclDouble, hcclAvg, comm, stream));
  }
  check(hcclStreamSynchronize(stream));
  std::printf("rank %d of %d: %g\n", rank, world_size, data.back());
  check(hcclStreamDestroy(stream));
  check(hcclCommDestroy(comm));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
