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

template <class V>
constexpr bool is_float = std::is_floating_point_v<std::remove_reference_t<decltype(V{}[0])>>;

// The accumulator comes first, the next source second. Integers compute unsigned where they may
// overflow, so that they wrap.
struct Sum {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    return a + b;
  }
};
// Divides the sum by the number of sources.
struct Average : Sum {};
// Stops if a sum is not finite; its kernel continues if a source is not either.
struct SumInRange : Sum {};
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
// A NaN on either side is kept, and -0 is less than 0: the order of a and b does not matter. Equal
// values differ in the sign of a zero only, which both operations on their bits correct.
struct Min {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    using Bits = decltype(a == b);
    const V least = ((b < a) | (b != b)) ? b : a;
    if constexpr (!is_float<V>) return least;
    return (V)((Bits)least | ((Bits)b & (a == b)));
  }
};
struct Max {
  template <class V>
  static HCCL_INLINE V apply(V a, V b) {
    using Bits = decltype(a == b);
    const V most = ((b > a) | (b != b)) ? b : a;
    if constexpr (!is_float<V>) return most;
    return (V)((Bits)most & ((Bits)b | (a != b)));
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

// Whether any bit is set.
template <class V>
HCCL_INLINE bool any(V mask) {
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (sizeof(V) == 64) {
    return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
  }
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (sizeof(V) == 32) return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#endif
  using Word = std::conditional_t<sizeof(V) < sizeof(uint64_t), uint32_t, uint64_t>;
  Word words[sizeof(V) / sizeof(Word)];
  __builtin_memcpy(words, &mask, sizeof(V));
  Word all = 0;
  for (Word word : words) all |= word;
  return all != 0;
}

// Floats without their sign, as integers: in the order of the magnitudes, NaN above all.
template <class T>
using Magnitude = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;

template <size_t lanes, class T>
HCCL_INLINE Vector<Magnitude<T>, lanes> magnitudes(Vector<T, lanes> value) {
  return (Vector<Magnitude<T>, lanes>)value & std::numeric_limits<Magnitude<T>>::max();
}

template <class V>
HCCL_INLINE auto is_finite(V value) {
  return value - value == 0;
}

// Whether all of a block's sums are stored as numbers.
template <class Format, size_t lanes, size_t unroll>
HCCL_INLINE bool in_range(const Vector<typename Format::Compute, lanes> (&total)[unroll]) {
  using T = typename Format::Compute;
  auto most = magnitudes<lanes, T>(total[0]);
  for (size_t u = 1; u < unroll; ++u) {
    const auto next = magnitudes<lanes, T>(total[u]);
    most = next > most ? next : most;
  }
  return !any(most > __builtin_bit_cast(Magnitude<T>, Format::largest_sum));
}

// Whether the sum of an element overflows although all its sources are finite.
template <class Format>
bool leaves_range(const std::byte* const* srcs, size_t num_srcs, size_t index) {
  using V = Vector<typename Format::Compute, 1>;
  const size_t offset = index * Format::element_bytes;
  V total[1] = {};
  bool finite = true;
  for (size_t s = 0; s < num_srcs; ++s) {
    const V value = Format::template load<1>(srcs[s] + offset);
    finite &= any(is_finite(value));
    total[0] += value;
  }
  return finite && !in_range<Format, 1, 1>(total);
}

template <class Format, size_t lanes>
HCCL_INLINE void store_result(std::byte* to, Vector<typename Format::Compute, lanes> value) {
  using T = typename Format::Compute;
  if constexpr (std::is_floating_point_v<T>) value = canonical_nan<lanes, T>(value);
  Format::template store<lanes>(to, value);
}

// Reduces from element `begin` on while a block of lanes * unroll elements fits, and returns where
// it stopped; SumInRange stops ahead of a block with a sum that is no number. The block's
// accumulators stay in registers across all sources and each is stored once, after its sources were
// read: dst may be any of them.
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
    if constexpr (std::is_same_v<Op, SumInRange>) {
      if (!in_range<Format, lanes, unroll>(total)) break;
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
HCCL_INLINE size_t reduce_body(std::byte* dst, const std::byte* const* srcs, size_t begin,
                               size_t count) {
  const std::byte* copy[num_srcs];
  for (size_t s = 0; s < num_srcs; ++s) copy[s] = srcs[s];
  return reduce_blocks<Format, Op, wide_lanes<Format>, 4>(dst, copy, num_srcs, begin, count);
}

// If a block stops it, narrower blocks continue up to the exact element.
template <class Format, class Op>
HCCL_INLINE size_t reduce_from(std::byte* dst, const std::byte* const* srcs, size_t num_srcs,
                               size_t begin, size_t count) {
  constexpr size_t wide = wide_lanes<Format>;
  constexpr size_t narrow = 16 / sizeof(typename Format::Compute);
  size_t i = begin;
  if (count - begin >= wide * 4) {
    switch (num_srcs) {
      case 2: i = reduce_body<Format, Op, 2>(dst, srcs, i, count); break;
      case 3: i = reduce_body<Format, Op, 3>(dst, srcs, i, count); break;
      case 4: i = reduce_body<Format, Op, 4>(dst, srcs, i, count); break;
      default: i = reduce_blocks<Format, Op, wide, 4>(dst, srcs, num_srcs, i, count);
    }
  }
  i = reduce_blocks<Format, Op, wide, 1>(dst, srcs, num_srcs, i, count);
  if constexpr (narrow < wide) {
    i = reduce_blocks<Format, Op, narrow, 1>(dst, srcs, num_srcs, i, count);
  }
  return reduce_blocks<Format, Op, 1, 1>(dst, srcs, num_srcs, i, count);
}

template <class Format, class Op>
size_t reduce_kernel(std::byte* dst, const std::byte* const* srcs, size_t num_srcs, size_t count) {
  size_t i = reduce_from<Format, Op>(dst, srcs, num_srcs, 0, count);
  if constexpr (std::is_same_v<Op, SumInRange>) {
    // The sum of element i is not finite. That is correct if a source is not either, and then its
    // neighbours are likely alike.
    constexpr size_t neighbours = 64;
    while (i < count) {
      for (size_t end = count - i < neighbours ? count : i + neighbours; i < end; ++i) {
        if (leaves_range<Format>(srcs, num_srcs, i)) return i;
        reduce_blocks<Format, Sum, 1, 1>(dst, srcs, num_srcs, i, i + 1);
      }
      i = reduce_from<Format, Op>(dst, srcs, num_srcs, i, count);
    }
  }
  return i;
}

template <class Format, class Op, size_t lanes>
HCCL_INLINE size_t apply_blocks(std::byte* to, const std::byte* from, size_t begin, size_t count,
                                typename Format::Compute operand) {
  const auto operands = Vector<typename Format::Compute, lanes>{} + operand;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    const size_t at = i * Format::element_bytes;
    const auto value = Format::template load<lanes>(from + at);
    auto result = Op::apply(value, operands);
    if constexpr (std::is_same_v<Op, Quotient>) {
      const auto most = Vector<typename Format::Compute, lanes>{} + Format::largest_sum;
      const auto bounded = result > most ? most : result < -most ? -most : result;
      result = is_finite(value) ? bounded : result;
    }
    store_result<Format, lanes>(to + at, result);
  }
  return i;
}

template <class Format, class Op>
void apply_to_floats(std::byte* to, const std::byte* from, size_t count, double operand) {
  const auto rounded = static_cast<typename Format::Compute>(operand);
  const size_t i = apply_blocks<Format, Op, wide_lanes<Format>>(to, from, 0, count, rounded);
  apply_blocks<Format, Op, 1>(to, from, i, count, rounded);
}

// The divisor may exceed the range of a small element, so small elements divide as int.
template <class T>
void divide_integers(std::byte* to, const std::byte* from, size_t count, double divisor) {
  using Wide = std::conditional_t<(sizeof(T) < sizeof(int)), int, T>;
  const Wide whole = static_cast<Wide>(divisor);
  for (size_t i = 0; i < count * sizeof(T); i += sizeof(T)) {
    store_bytes(to + i, static_cast<T>(load_bytes<T>(from + i) / whole));
  }
}

#include "reduce/reduce_encodings.h"
#include "reduce/reduce_exact.h"

struct TableBuilder {
  ReduceTable table;

  // Before its callers: clang evaluates a template at compile time only after its definition.
  template <class Format, class Op>
  constexpr void set(DType dtype, ReduceOp op) {
    table.reduce[static_cast<size_t>(dtype)][static_cast<size_t>(op)] = reduce_kernel<Format, Op>;
  }

  // As reduces_in_one_step() says, a float of 8 bits is divided while it is summed up. Of others, a
  // sum that has left the range of its type could not be divided any more.
  template <class Format>
  constexpr void add_float(DType dtype) {
    constexpr bool one_step = Format::element_bytes == 1;
    set<Format, Sum>(dtype, ReduceOp::sum);
    set<Format, std::conditional_t<one_step, Average, SumInRange>>(dtype, ReduceOp::avg);
    set<Format, Product>(dtype, ReduceOp::product);
    set<Format, Min>(dtype, ReduceOp::min);
    set<Format, Max>(dtype, ReduceOp::max);
    const auto i = static_cast<size_t>(dtype);
    table.reduce[i][static_cast<size_t>(ReduceOp::exact_sum)] = exact_reduction<Format, false>;
    table.reduce[i][static_cast<size_t>(ReduceOp::exact_avg)] = exact_reduction<Format, true>;
    table.exact[i] = exact_kernel<Format>;
    if constexpr (Format::element_bytes == 2) {
      table.exact_of_floats[i] = exact_kernel<Plain<float>, Format>;
    }
    if constexpr (Format::element_bytes >= 4) {
      table.split[i] = split_kernel<typename Format::Compute>;
    }
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
