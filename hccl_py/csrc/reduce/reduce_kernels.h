// The reduction kernels, written once and compiled once per instruction set: each of the files
// reduce_<instruction set>.cc defines HCCL_VECTOR_BYTES, and HCCL_TARGET unless the target is what
// every processor has, and includes this.
// No include guard, no #include (see reduce_dispatch.h), and everything is in an anonymous
// namespace, so that code for one instruction set is never linked in for another.

#define HCCL_INLINE inline __attribute__((always_inline))
#define HCCL_PRAGMA(text) _Pragma(#text)

#if defined(HCCL_TARGET)
#if defined(__clang__)
#define HCCL_USE_TARGET(name) \
  HCCL_PRAGMA(clang attribute push(__attribute__((target(name))), apply_to = function))
#else
#define HCCL_USE_TARGET(name) HCCL_PRAGMA(GCC push_options) HCCL_PRAGMA(GCC target(name))
#endif
HCCL_USE_TARGET(HCCL_TARGET)
#endif

namespace hccl {
namespace {

#include "reduce/reduce_formats.h"
#include "reduce/reduce_small_floats.h"

constexpr size_t vector_bytes = HCCL_VECTOR_BYTES;

// The accumulator comes first, the next source second. Integers compute unsigned where they may
// overflow, so that they wrap.
struct Sum {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a + b;
  }
};
// Divides what it has summed up by the number of sources.
struct Average : Sum {};
struct Product {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a * b;
  }
};
struct Quotient {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a / b;
  }
};
// A NaN on either side is kept; of equal values (zeros of both signs) the first.
struct Min {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct BitAnd {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a & b;
  }
};
struct BitOr {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a | b;
  }
};
struct BitXor {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a ^ b;
  }
};

template <class Format, size_t lanes>
HCCL_INLINE void store_result(std::byte* to, Vector<typename Format::Compute, lanes> value) {
  using T = typename Format::Compute;
  if constexpr (std::is_floating_point_v<T>) value = canonical_nan<lanes, T>(value);
  Format::template store<lanes>(to, value);
}

// Reduces from element `begin` on while a block of lanes * unroll elements fits, and returns where
// it stopped. The block's accumulators stay in registers across all sources and each is stored
// once, after its sources were read: dst may be any of them.
template <class Format, class Op, size_t lanes, size_t unroll>
HCCL_INLINE size_t reduce_blocks(std::byte* dst, const std::byte* const* srcs, size_t num_srcs,
                                 size_t begin, size_t count) {
  constexpr size_t step = lanes * Format::element_bytes;
  size_t i = begin;
  for (; count - i >= lanes * unroll; i += lanes * unroll) {
    const size_t offset = i * Format::element_bytes;
    Vector<typename Format::Compute, lanes> total[unroll];
    for (size_t u = 0; u < unroll; ++u) {
      total[u] = Format::template load<lanes>(srcs[0] + offset + u * step);
    }
    for (size_t s = 1; s < num_srcs; ++s) {
      const std::byte* from = srcs[s] + offset;
      for (size_t u = 0; u < unroll; ++u) {
        total[u] = Op::apply(total[u], Format::template load<lanes>(from + u * step));
      }
    }
    for (size_t u = 0; u < unroll; ++u) {
      if constexpr (std::is_same_v<Op, Average>) total[u] /= static_cast<float>(num_srcs);
      store_result<Format, lanes>(dst + offset + u * step, total[u]);
    }
  }
  return i;
}

template <class Format>
constexpr size_t wide_lanes = vector_bytes / sizeof(typename Format::Compute);

// The body of a long buffer, four vectors at a time. A number of sources that the compiler knows
// unrolls the loop over them, and a copy of the pointers, which no store to dst can change, keeps
// them in registers: a third faster out of L2.
template <class Format, class Op, size_t num_srcs>
HCCL_INLINE size_t reduce_body(std::byte* dst, const std::byte* const* srcs, size_t count) {
  const std::byte* copy[num_srcs];
  for (size_t s = 0; s < num_srcs; ++s) copy[s] = srcs[s];
  return reduce_blocks<Format, Op, wide_lanes<Format>, 4>(dst, copy, num_srcs, 0, count);
}

template <class Format, class Op>
void reduce_kernel(std::byte* dst, const std::byte* const* srcs, size_t num_srcs, size_t count) {
  constexpr size_t wide = wide_lanes<Format>;
  constexpr size_t narrow = 16 / sizeof(typename Format::Compute);
  size_t i = 0;
  if (count >= wide * 4) {
    switch (num_srcs) {
      case 2: i = reduce_body<Format, Op, 2>(dst, srcs, count); break;
      case 3: i = reduce_body<Format, Op, 3>(dst, srcs, count); break;
      case 4: i = reduce_body<Format, Op, 4>(dst, srcs, count); break;
      default: i = reduce_blocks<Format, Op, wide, 4>(dst, srcs, num_srcs, 0, count);
    }
  }
  i = reduce_blocks<Format, Op, wide, 1>(dst, srcs, num_srcs, i, count);
  if constexpr (narrow < wide) {
    i = reduce_blocks<Format, Op, narrow, 1>(dst, srcs, num_srcs, i, count);
  }
  reduce_blocks<Format, Op, 1, 1>(dst, srcs, num_srcs, i, count);
}

template <class Format, class Op, size_t lanes>
HCCL_INLINE size_t apply_blocks(std::byte* to, const std::byte* from, size_t begin, size_t count,
                                typename Format::Compute operand) {
  const auto operands = Vector<typename Format::Compute, lanes>{} + operand;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    const size_t at = i * Format::element_bytes;
    const auto value = Format::template load<lanes>(from + at);
    store_result<Format, lanes>(to + at, Op::apply(value, operands));
  }
  return i;
}

template <class Format, class Op>
void apply_to_floats(std::byte* to, const std::byte* from, size_t count, double operand) {
  const auto rounded = static_cast<typename Format::Compute>(operand);
  const size_t i = apply_blocks<Format, Op, wide_lanes<Format>>(to, from, 0, count, rounded);
  apply_blocks<Format, Op, 1>(to, from, i, count, rounded);
}

// The divisor may exceed what a small element holds, so those divide as int.
template <class T>
void divide_integers(std::byte* to, const std::byte* from, size_t count, double divisor) {
  using Wide = std::conditional_t<(sizeof(T) < sizeof(int)), int, T>;
  const Wide whole = static_cast<Wide>(divisor);
  for (size_t i = 0; i < count * sizeof(T); i += sizeof(T)) {
    store_bytes(to + i, static_cast<T>(load_bytes<T>(from + i) / whole));
  }
}

#include "reduce/reduce_encodings.h"

struct TableBuilder {
  ReduceTable table;

  // Ahead of its callers: clang evaluates no template at compile time that it has not yet seen.
  template <class Format, class Op>
  constexpr void set(DType dtype, ReduceOp op) {
    table.reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)] = reduce_kernel<Format, Op>;
  }

  // As reduces_in_one_step() says, a float of 8 bits is divided while it is summed up.
  template <class Format>
  constexpr void add_float(DType dtype) {
    constexpr bool one_step = Format::element_bytes == 1;
    set<Format, Sum>(dtype, ReduceOp::sum);
    set<Format, std::conditional_t<one_step, Average, Sum>>(dtype, ReduceOp::avg);
    set<Format, Product>(dtype, ReduceOp::product);
    set<Format, Min>(dtype, ReduceOp::min);
    set<Format, Max>(dtype, ReduceOp::max);
    const auto i = static_cast<size_t>(dtype);
    if constexpr (!one_step) table.scale[i] = apply_to_floats<Format, Quotient>;
    table.multiply[i] = apply_to_floats<Format, Product>;
  }

  template <class T>
  constexpr void add_integer(DType dtype) {
    using Unsigned = Plain<std::make_unsigned_t<T>>;
    set<Unsigned, Sum>(dtype, ReduceOp::sum);
    set<Unsigned, Sum>(dtype, ReduceOp::avg);
    set<Unsigned, Product>(dtype, ReduceOp::product);
    set<Plain<T>, Min>(dtype, ReduceOp::min);
    set<Plain<T>, Max>(dtype, ReduceOp::max);
    set<Unsigned, BitAnd>(dtype, ReduceOp::band);
    set<Unsigned, BitOr>(dtype, ReduceOp::bor);
    set<Unsigned, BitXor>(dtype, ReduceOp::bxor);
    table.scale[static_cast<size_t>(dtype)] = divide_integers<T>;
  }

  constexpr void add_boolean() {
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::bor}) {
      set<Boolean, BitOr>(DType::boolean, op);
    }
    for (ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::band}) {
      set<Boolean, BitAnd>(DType::boolean, op);
    }
    set<Boolean, BitXor>(DType::boolean, ReduceOp::bxor);
  }

  constexpr void add_encoding(Compression compression, EncodeKernel encode, DecodeKernel decode) {
    table.encode[static_cast<size_t>(compression)] = encode;
    table.decode[static_cast<size_t>(compression)] = decode;
  }
};

constexpr ReduceTable make_table(const char* name) {
  TableBuilder builder{{.name = name}};
  builder.add_float<Plain<float>>(DType::float32);
  builder.add_float<Plain<double>>(DType::float64);
  builder.add_float<Float16>(DType::float16);
  builder.add_float<BFloat16>(DType::bfloat16);
  builder.add_integer<int8_t>(DType::int8);
  builder.add_integer<uint8_t>(DType::uint8);
  builder.add_integer<int16_t>(DType::int16);
  builder.add_integer<uint16_t>(DType::uint16);
  builder.add_integer<int32_t>(DType::int32);
  builder.add_integer<uint32_t>(DType::uint32);
  builder.add_integer<int64_t>(DType::int64);
  builder.add_integer<uint64_t>(DType::uint64);
  builder.add_boolean();
  builder.add_float<Float8E4M3FN>(DType::float8_e4m3fn);
  builder.add_float<Float8E5M2>(DType::float8_e5m2);
  builder.add_float<Float8E4M3FNUZ>(DType::float8_e4m3fnuz);
  builder.add_float<Float8E5M2FNUZ>(DType::float8_e5m2fnuz);
  builder.add_float<Float8E8M0FNU>(DType::float8_e8m0fnu);
  builder.add_encoding(Compression::bf16, encode_bf16, decode_bf16);
  builder.add_encoding(Compression::int8, encode_int8, decode_int8);
  return builder.table;
}

}  // namespace
}  // namespace hccl

#if defined(HCCL_TARGET) && defined(__clang__)
#pragma clang attribute pop
#elif defined(HCCL_TARGET)
#pragma GCC pop_options
#endif
