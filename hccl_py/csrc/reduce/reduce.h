// Reduction kernels: dst = srcs[0] op srcs[1] op ... , element by element, in exactly that order.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"

namespace hccl {

// True if the pair is defined: band, bor and bxor need integers or bool.
bool reduce_supported(DType dtype, ReduceOp op);

// Reduces `count` elements of every source into `dst`, from left to right in the order given, so
// that two ranks which pass the same sources in the same order end with the same bits.
// `dst` may be one of the sources, else it overlaps none. There is at least one source.
// 16-bit floats accumulate in float32 over all sources and round once; bool sum and max are or,
// product and min are and; integer overflow wraps; min and max propagate NaN. avg sums; of 8-bit
// floats, which accumulate in float32 and round once too, it divides by the number of sources.
//
// Returns how many elements it reduced. That is `count`, but avg of wider floats stops at the first
// element with finite sources and an infinite sum, whose average may be finite. The caller
// continues from there with scaled-down sources.
[[nodiscard]] size_t reduce(DType dtype, ReduceOp op, std::byte* dst,
                            std::span<const std::byte* const> srcs, size_t count);

// The exact sum of floats / `divisor`, which is below 2^25, rounded once: it does not depend on the
// order of the sources. Zero is -0 only if all sources are. Sources of float32 may be rounded to 16
// bits. False, without effect, for other types.
bool reduce_exactly(DType from, DType to, std::byte* dst, std::span<const std::byte* const> srcs,
                    size_t count, size_t divisor);

// Of float32 and float64: makes `sum` the rounded sum of both, and `addend` what that lost, or -0,
// which changes no later sum. Where the sum is no number, both stay. Returns whether `addend` is
// left with anything but zeros.
bool split_sum(DType dtype, std::byte* sum, std::byte* addend, size_t count);

// Divides in place, once, after a sum: the second half of avg. Integers truncate towards zero, and
// their divisor is an integer; 8-bit floats stay as they are. Finite floats stay finite: a quotient
// beyond the largest number, possible only by rounding, becomes that number.
void scale(DType dtype, std::byte* data, size_t count, double divisor);

// Multiplies floats, in the type of their sums, and rounds each product once; `to` may be `from`.
// False, without effect, for other elements.
bool multiply(DType dtype, std::byte* to, const std::byte* from, size_t count, double factor);

// Elements of an int8 block; the last one of a message may be shorter.
inline constexpr size_t int8_block = 256;

// Bytes of `count` float32 elements once they are encoded.
constexpr size_t encoded_bytes(Compression compression, size_t count) {
  switch (compression) {
    case Compression::none: return count * sizeof(float);
    case Compression::bf16: return count * 2;
    case Compression::int8: return count + (count + int8_block - 1) / int8_block * sizeof(float);
  }
  return 0;
}

// Encodes float32 elements:
//   bf16: each rounded to nearest even, infinities and NaN kept. Off by at most 2^-8 of the
//   element. int8: for each block its scale (float32, the largest magnitude / 127, cut to 16 bits
//   so that every product with it is exact), then each element / scale, rounded to nearest even.
//   Off by at most 1/253 of the block's largest magnitude, or 2^-127. A block that holds an
//   infinity or a NaN becomes NaN as a whole.
// With a `residual` (`count` float32 elements; may be null) its elements are added first, and
// become what the encoding lost; 0 where that is no number. Nothing overlaps.
void encode(Compression compression, std::byte* to, const std::byte* from, std::byte* residual,
            size_t count);

// Decodes `count` elements from encoded_bytes() bytes, whatever these are, to the same bits on
// every processor.
void decode(Compression compression, std::byte* to, const std::byte* from, size_t count);

// Name of the instruction set the kernels chose on this processor, e.g. "avx512", "avx2",
// "generic".
const char* reduce_instruction_set();

}  // namespace hccl
