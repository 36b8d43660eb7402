// The collectives of oneCCL, whose interface is C++, as functions that ctypes can call.
#include <cstddef>
#include <cstring>
#include <memory>
#include <oneapi/ccl.hpp>
#include <string>

namespace {

constexpr auto type = ccl::datatype::float32;
constexpr auto sum = ccl::reduction::sum;

ccl::shared_ptr_class<ccl::kvs> store;
std::unique_ptr<ccl::communicator> ranks;

}  // namespace

extern "C" {

size_t oneccl_address_bytes() { return ccl::kvs::address_max_size; }

// The store where ranks meet: rank 0 makes it and writes its address, the others read that.
void oneccl_meet(int rank, char* address) {
  ccl::init();
  ccl::kvs::address_type given;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    given = store->get_address();
    std::memcpy(address, given.data(), given.size());
  } else {
    std::memcpy(given.data(), address, given.size());
    store = ccl::create_kvs(given);
  }
}

void oneccl_connect(int rank, int world_size) {
  ranks = std::make_unique<ccl::communicator>(ccl::create_communicator(world_size, rank, store));
}

void oneccl_close() { ranks.reset(); }

// `count` elements of a rank's block. Errors end the process, by an exception.
void oneccl_all_reduce(const float* input, float* output, size_t count, int) {
  ccl::allreduce(input, output, count, type, sum, *ranks).wait();
}

void oneccl_broadcast(const float*, float* data, size_t count, int root) {
  ccl::broadcast(data, count, type, root, *ranks).wait();
}

void oneccl_reduce(const float* input, float* output, size_t count, int root) {
  ccl::reduce(input, output, count, type, sum, root, *ranks).wait();
}

void oneccl_all_gather(const float* input, float* output, size_t count, int) {
  ccl::allgather(input, output, count, type, *ranks).wait();
}

void oneccl_reduce_scatter(const float* input, float* output, size_t count, int) {
  ccl::reduce_scatter(input, output, count, type, sum, *ranks).wait();
}

void oneccl_all_to_all(const float* input, float* output, size_t count, int) {
  ccl::alltoall(input, output, count, type, *ranks).wait();
}

void oneccl_barrier(const float*, float*, size_t, int) { ccl::barrier(*ranks).wait(); }
}
