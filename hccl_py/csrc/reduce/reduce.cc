#include "reduce/reduce.h"

#include <cassert>
#include <cstring>
#include <vector>

#include "reduce/reduce_dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hccl {
namespace {

#if defined(__x86_64__)
// By cpuid: clang 14 lacks the name "f16c" in __builtin_cpu_supports.
bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

std::vector<const ReduceTable*> find_usable_tables() {
  std::vector<const ReduceTable*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // These also check that the operating system saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) found.push_back(&reduce_table_avx512);
  if (avx2) found.push_back(&reduce_table_avx2);
#endif
  found.push_back(&reduce_table_generic);
  return found;
}

// Chosen once, when the library is loaded, and never written again: reading it takes no lock.
const std::vector<const ReduceTable*> usable = find_usable_tables();
const ReduceTable& best = *usable.front();

}  // namespace

std::span<const ReduceTable* const> usable_reduce_tables() { return usable; }

size_t reduce_with(const ReduceTable& table, DType dtype, ReduceOp op, std::byte* dst,
                   std::span<const std::byte* const> srcs, size_t count) {
  assert(!srcs.empty() && reduce_supported(dtype, op));
  if (count == 0) return 0;
  if (srcs.size() == 1) {
    if (dst != srcs[0]) std::memcpy(dst, srcs[0], count * size_of(dtype));
    return count;
  }
  return table.reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)](dst, srcs.data(),
                                                                           srcs.size(), count);
}

bool reduce_supported(DType dtype, ReduceOp op) {
  return reduce_table_generic.reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)] !=
         nullptr;
}

size_t reduce(DType dtype, ReduceOp op, std::byte* dst, std::span<const std::byte* const> srcs,
              size_t count) {
  return reduce_with(best, dtype, op, dst, srcs, count);
}

bool reduce_exactly(DType from, DType to, std::byte* dst, std::span<const std::byte* const> srcs,
                    size_t count, size_t divisor) {
  const auto i = static_cast<size_t>(to);
  const ExactKernel kernel = from == to               ? best.exact[i]
                             : from == DType::float32 ? best.exact_of_floats[i]
                                                      : nullptr;
  if (kernel != nullptr) kernel(dst, srcs.data(), srcs.size(), count, divisor);
  return kernel != nullptr;
}

bool split_sum(DType dtype, std::byte* sum, std::byte* addend, size_t count) {
  return best.split[static_cast<size_t>(dtype)](sum, addend, count);
}

void scale(DType dtype, std::byte* data, size_t count, double divisor) {
  assert(divisor > 0 && dtype != DType::boolean);
  if (reduces_in_one_step(dtype)) return;
  best.scale[static_cast<size_t>(dtype)](data, data, count, divisor);
}

bool multiply(DType dtype, std::byte* to, const std::byte* from, size_t count, double factor) {
  const OperandKernel kernel = best.multiply[static_cast<size_t>(dtype)];
  if (kernel != nullptr) kernel(to, from, count, factor);
  return kernel != nullptr;
}

void encode(Compression compression, std::byte* to, const std::byte* from, std::byte* residual,
            size_t count) {
  assert(compression != Compression::none);
  best.encode[static_cast<size_t>(compression)](to, from, residual, count);
}

void decode(Compression compression, std::byte* to, const std::byte* from, size_t count) {
  assert(compression != Compression::none);
  best.decode[static_cast<size_t>(compression)](to, from, count);
}

const char* reduce_instruction_set() { return best.name; }

}  // namespace hccl
