// Element types and reduce operations: the whole vocabulary that C++ shares with Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hccl {

// The values cross into Python (transport/dtypes.py) and travel in fingerprints: append only.
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
};
inline constexpr int num_reduce_ops = 8;

// Eight bits are too few to hold a sum on its way: such a reduction has to be one step, with all
// that it sums up as its sources, and there an average is divided too, before it is rounded.
constexpr bool reduces_in_one_step(DType dtype) { return dtype >= DType::float8_e4m3fn; }

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::int8:
    case DType::uint8:
    case DType::boolean:
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz:
    case DType::float8_e8m0fnu: return 1;
    case DType::float16:
    case DType::bfloat16:
    case DType::int16:
    case DType::uint16: return 2;
    case DType::float32:
    case DType::int32:
    case DType::uint32: return 4;
    case DType::float64:
    case DType::int64:
    case DType::uint64: return 8;
  }
  return 0;
}

}  // namespace hccl
