// Element types and reduce operations, shared between C++ and Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace hccl {

// The values are used in Python (transport/types.py) and in fingerprints: append only.
enum class DType : uint8_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  bfloat16 = 3,
  int8 = 4,
  uint8 = 5,
  int16 = 6,
  uint16 = 7,
  int32 = 8,
  uint32 = 9,
  int64 = 10,
  uint64 = 11,
  boolean = 12,
  float8_e4m3fn = 13,
  float8_e5m2 = 14,
  float8_e4m3fnuz = 15,
  float8_e5m2fnuz = 16,
  float8_e8m0fnu = 17,
};
inline constexpr int num_dtypes = 18;

enum class ReduceOp : uint8_t {
  sum = 0,
  product = 1,
  min = 2,
  max = 3,
  avg = 4,  // reduces as sum; scale() divides once, at the end
  band = 5,
  bor = 6,
  bxor = 7,
  exact_sum = 8,  // of floats, with all operands as its sources: the exact sum, rounded once
  exact_avg = 9,
};
inline constexpr int num_reduce_ops = 10;

// The encoding of float32 on a plan's compressed edges, see reduce/reduce.h. The values are used in
// Python (transport/types.py) and in fingerprints: append only.
enum class Compression : uint8_t { none = 0, bf16 = 1, int8 = 2 };
inline constexpr int num_compressions = 3;

// Eight bits are too few for partial sums: such a reduction must be one step with all operands as
// its sources, in which an average is also divided before it is rounded.
constexpr bool reduces_in_one_step(DType dtype) { return dtype >= DType::float8_e4m3fn; }

// Of an element, by DType.
inline constexpr uint8_t element_bytes[] = {4, 8, 2, 2, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 1, 1, 1, 1};
static_assert(std::size(element_bytes) == num_dtypes);

constexpr size_t size_of(DType dtype) { return element_bytes[static_cast<size_t>(dtype)]; }

}  // namespace hccl
