// Sums and averages that are rounded once, of the exact sum. Included only by reduce_kernels.h,
// under its rules. Three ways, each with a proof that the next one is not needed:
//
//   1. Floats of up to 32 bits are summed up as doubles. If the processor raised no "inexact", the
//      sums are exact. That fails only if the operands of an element span more than 2^29 / their
//      number, so hardly ever.
//   2. TwoSum (Knuth) gives the sum of two doubles and its error, exactly. The sum of the errors is
//      added up in the same way, and if its errors are all zero, it is exact. So is this pair's
//      sum.
//   3. ExactSum, by element: for what is left, overflow on the way, infinities and NaN.
//
// A sum for a narrower type is rounded to odd first, as often as needed: the last bit keeps whether
// anything was cut off. Rounding such a number to at least two bits fewer gives what rounding the
// exact number would give (Boldo and Melquiond). Products here are exact, so that contracting them
// with the sum that follows changes nothing; where they are not, the comment says why it is right.

constexpr size_t exact_block = 256;
constexpr size_t double_lanes = vector_bytes / sizeof(double);

// Floats to doubles and back. Of one instruction GCC 12 makes five if it has only
// __builtin_convertvector.
template <size_t lanes, class T>
HCCL_INLINE Vector<double, lanes> as_double(Vector<T, lanes> value) {
  using D [[maybe_unused]] = Vector<double, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 8 && sizeof(T) == 4) return (D)_mm512_maskz_cvtps_pd(0xff, (__m256)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 4 && sizeof(T) == 4) return (D)_mm256_cvtps_pd((__m128)value);
#endif
  return __builtin_convertvector(value, D);
}

template <class T, size_t lanes>
HCCL_INLINE Vector<T, lanes> as_float(Vector<double, lanes> value) {
  using F [[maybe_unused]] = Vector<T, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 8 && sizeof(T) == 4) return (F)_mm512_maskz_cvtpd_ps(0xff, (__m512d)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 4 && sizeof(T) == 4) return (F)_mm256_cvtpd_ps((__m256d)value);
#endif
  return __builtin_convertvector(value, F);
}

// By lane: all bits if the number is not zero, and none for NaN.
template <class V>
HCCL_INLINE auto is_not_zero(V value) {
  return (value > 0) | (value < 0);
}

// `value` + `error`, which is less than a step of the last place, rounded to odd.
template <class V, class I>
HCCL_INLINE V to_odd(V value, I is_inexact, I is_towards_zero) {
  const I bits = (I)value;
  const I is_even = (bits & 1) - 1;
  return (V)(bits + (is_inexact & is_even & (is_towards_zero * 2 + 1)));
}

template <size_t lanes>
HCCL_INLINE Vector<double, lanes> to_odd_by(Vector<double, lanes> value,
                                            Vector<double, lanes> error) {
  using I = Vector<int64_t, lanes>;
  return to_odd(value, (I)is_not_zero(error), ((I)value ^ (I)error) >> 63);
}

// `is_normal`: all are normal floats, or exact ones.
template <size_t lanes>
HCCL_INLINE Vector<float, lanes> to_odd_float(Vector<double, lanes> value, bool is_normal) {
  using F = Vector<float, lanes>;
  using D = Vector<double, lanes>;
  using I = Vector<int32_t, lanes>;
  using L = Vector<int64_t, lanes>;
  const D size = value < 0 ? -value : value;
  if (is_normal || !any((L)((size < 0x1p-126) & (size > 0)))) {
    // A carry of the bits that a float lacks says whether one is set.
    constexpr int64_t cut = (1 << 29) - 1;
    const L bits = (L)value;
    return as_float<float, lanes>((D)((bits | ((bits & cut) + cut)) & ~cut));
  }
  const F nearest = as_float<float, lanes>(value);
  const D error = value - as_double<lanes, float>(nearest);
  const I is_inexact = __builtin_convertvector((L)is_not_zero(error), I);
  const L differs = ((L)value ^ (L)error) >> 63;
  return to_odd(nearest, is_inexact, __builtin_convertvector(differs, I));
}

template <class Format, size_t lanes>
HCCL_INLINE Vector<double, lanes> load_double(const std::byte* from) {
  using Compute = typename Format::Compute;
  return as_double<lanes, Compute>(Format::template load<lanes>(from));
}

template <class V>
HCCL_INLINE V two_sum(V a, V b, V& error) {
  const V sum = a + b, part = sum - a;
  error = (a - (sum - part)) + (b - part);
  return sum;
}

// a - b * n, exactly, of b = a / n rounded and n < 2^25: each half of b has at most 27 bits, so
// both products and all differences are multiples of a step of b below 2^53 steps.
template <size_t lanes>
HCCL_INLINE Vector<double, lanes> remainder(Vector<double, lanes> a, Vector<double, lanes> b,
                                            double n) {
  using D = Vector<double, lanes>;
  const D high = (D)((Vector<int64_t, lanes>)b >> 27 << 27);
  const D low = b - high;
  return (a - high * n) - low * n;
}

// Returns the exact sum / n, rounded to odd. Sums of floats do not become subnormal.
template <size_t lanes>
HCCL_INLINE Vector<double, lanes> odd_quotient(Vector<double, lanes> sum, size_t num) {
  const auto n = static_cast<double>(num);
  if ((num & (num - 1)) == 0) return sum * (1 / n);
  const auto quotient = sum / n;
  return to_odd_by<lanes>(quotient, remainder<lanes>(sum, quotient, n));
}

// Returns (high + low) / n, rounded to nearest; clears `is_right` where that is not certain.
template <size_t lanes>
HCCL_INLINE Vector<double, lanes> nearest_quotient(Vector<double, lanes> high,
                                                   Vector<double, lanes> low, size_t num,
                                                   Vector<int64_t, lanes>& is_right) {
  using D = Vector<double, lanes>;
  using I = Vector<int64_t, lanes>;
  const auto n = static_cast<double>(num);
  const D size = high < 0 ? -high : high;
  is_right &= (I)((high == 0) | (size > 0x1p-900));  // nothing below becomes subnormal
  const D first = high / n;
  if ((num & (num - 1)) == 0) return first;  // `high` is the rounded sum, and this is exact
  D lost, rest;
  const D left = two_sum(remainder<lanes>(high, first, n), low, lost);
  const D second = left / n;
  const D sum = two_sum(first, second, rest);
  const D result = second == 0 ? first : sum;  // keeps -0
  // first + second is off by less than 2^-101 of itself, unless it is exact. Then it may be a tie.
  const D margin = result * 0x1p-98;
  const auto is_exact = (lost == 0) & (remainder<lanes>(left, second, n) == 0);
  const auto is_no_tie =
      (result + (rest + margin) == result) & (result + (rest - margin) == result);
  is_right &= (I)(is_exact | is_no_tie);
  return result;
}

// The first way, into `sums`. To the end of the block or, if `lanes` is 1, to the last element.
template <class Format, size_t lanes, size_t unroll>
HCCL_INLINE size_t add_up(double* sums, const std::byte* const* srcs, size_t num_srcs, size_t begin,
                          size_t offset, size_t count) {
  using D = Vector<double, lanes>;
  size_t i = offset;
  for (; count - i >= lanes * unroll; i += lanes * unroll) {
    D total[unroll];
    const size_t at = (begin + i) * Format::element_bytes;
    for (size_t u = 0; u < unroll; ++u) {
      total[u] = load_double<Format, lanes>(srcs[0] + at + u * lanes * Format::element_bytes);
    }
    for (size_t s = 1; s < num_srcs; ++s) {
      for (size_t u = 0; u < unroll; ++u) {
        total[u] += load_double<Format, lanes>(srcs[s] + at + u * lanes * Format::element_bytes);
      }
    }
    for (size_t u = 0; u < unroll; ++u) store_bytes((std::byte*)(sums + i + u * lanes), total[u]);
  }
  return i;
}

// The third way.
template <class Format>
double slow_sum(const std::byte* const* srcs, size_t num_srcs, size_t index, size_t divisor) {
  ExactSum sum;
  for (size_t s = 0; s < num_srcs; ++s) {
    sum.add(load_double<Format, 1>(srcs[s] + index * Format::element_bytes)[0]);
  }
  return sum.rounded(static_cast<uint32_t>(divisor), Format::element_bytes < 8);
}

// The second way, and the third where it is needed.
template <class Format, size_t lanes>
HCCL_INLINE size_t add_pairs(double* sums, const std::byte* const* srcs, size_t num_srcs,
                             size_t begin, size_t offset, size_t count, size_t divisor) {
  using D = Vector<double, lanes>;
  using I = Vector<int64_t, lanes>;
  constexpr bool is_wide = Format::element_bytes == 8;
  size_t i = offset;
  for (; count - i >= lanes; i += lanes) {
    const size_t at = (begin + i) * Format::element_bytes;
    D high = load_double<Format, lanes>(srcs[0] + at), low{}, error, lost;
    I is_lost{};
    for (size_t s = 1; s < num_srcs; ++s) {
      high = two_sum(high, load_double<Format, lanes>(srcs[s] + at), error);
      low = two_sum(low, error, lost);
      is_lost |= (I)lost;  // not zero for NaN, which overflow becomes, and +0 for zeros
    }
    D sum = two_sum(high, low, error);
    sum = low == 0 ? high : sum;  // keeps -0
    error = low == 0 ? D{} : error;
    is_lost |= (I)(error != error);
    I is_right = (I)(is_lost == 0);
    if (is_wide && divisor > 1) {
      sum = nearest_quotient<lanes>(sum, error, divisor, is_right);
    } else if (divisor > 1) {
      is_right &= (I)(error == 0);
      sum = odd_quotient<lanes>(sum, divisor);
    } else if (!is_wide) {
      sum = to_odd_by<lanes>(sum, error);
    }
    store_bytes((std::byte*)(sums + i), sum);
    if (!any(~is_right)) continue;
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (is_right[lane] != 0) continue;
      sums[i + lane] = slow_sum<Format>(srcs, num_srcs, begin + i + lane, divisor);
    }
  }
  return i;
}

template <class Format, size_t lanes, class Number>
HCCL_INLINE size_t store_sums(std::byte* dst, const Number* sums, size_t offset, size_t count) {
  using Compute = typename Format::Compute;
  size_t i = offset;
  for (; count - i >= lanes; i += lanes) {
    const auto sum = load_bytes<Vector<Number, lanes>>((const std::byte*)(sums + i));
    std::byte* to = dst + i * Format::element_bytes;
    if constexpr (std::is_same_v<Number, Compute>) {
      store_result<Format, lanes>(to, sum);
    } else {
      store_result<Format, lanes>(to, as_float<Compute, lanes>(sum));
    }
  }
  return i;
}

// Rounds for the last time; what is narrower than float is rounded to odd floats on the way.
template <class Format>
HCCL_INLINE void finish_block(std::byte* dst, const double* sums, size_t count, bool is_average) {
  constexpr size_t lanes = double_lanes;
  if constexpr (Format::element_bytes < sizeof(float)) {
    alignas(64) float floats[exact_block];
    // The other types lie within the normal floats; a small sum is exact, as its operands are.
    const bool is_normal =
        !is_average || !(std::is_same_v<Format, BFloat16> || std::is_same_v<Format, Float8E8M0FNU>);
    for (size_t i = 0; i < count; i += lanes) {
      const auto sum = load_bytes<Vector<double, lanes>>((const std::byte*)(sums + i));
      store_bytes((std::byte*)(floats + i), to_odd_float<lanes>(sum, is_normal));
    }
    const size_t i = store_sums<Format, 2 * lanes>(dst, floats, 0, count);
    store_sums<Format, 1>(dst, floats, i, count);
  } else {
    const size_t i = store_sums<Format, lanes>(dst, sums, 0, count);
    store_sums<Format, 1>(dst, sums, i, count);
  }
}

// A block is stored once its sources were read: dst may be any of them.
template <class Format, class To = Format>
void exact_kernel(std::byte* dst, const std::byte* const* srcs, size_t num_srcs, size_t count,
                  size_t divisor) {
  FloatingPoint processor;
  // Two numbers add up to the nearest one; on the way, a float has more than twice the bits of
  // narrower ones, which is enough (Figueroa).
  if constexpr (std::is_same_v<Format, To>) {
    if (num_srcs == 2 && divisor == 1) {
      reduce_kernel<Format, Sum>(dst, srcs, num_srcs, count);
      return;
    }
  }
  alignas(64) double sums[exact_block] = {};
  for (size_t begin = 0; begin < count; begin += exact_block) {
    const size_t length = count - begin < exact_block ? count - begin : exact_block;
    bool is_exact = false;
    if constexpr (Format::element_bytes < sizeof(double)) {
      processor.expect_exact(srcs, sums);
      size_t i = add_up<Format, double_lanes, 4>(sums, srcs, num_srcs, begin, 0, length);
      add_up<Format, 1, 1>(sums, srcs, num_srcs, begin, i, length);
      is_exact = processor.was_exact(srcs, sums);
    }
    if (!is_exact) {
      size_t i = add_pairs<Format, double_lanes>(sums, srcs, num_srcs, begin, 0, length, divisor);
      add_pairs<Format, 1>(sums, srcs, num_srcs, begin, i, length, divisor);
    } else if (divisor > 1) {
      for (size_t i = 0; i < length; i += double_lanes) {
        std::byte* at = (std::byte*)(sums + i);
        const auto sum = load_bytes<Vector<double, double_lanes>>(at);
        store_bytes(at, odd_quotient<double_lanes>(sum, divisor));
      }
    }
    finish_block<To>(dst + begin * To::element_bytes, sums, length, divisor > 1);
  }
}

template <class Format, bool average>
size_t exact_reduction(std::byte* dst, const std::byte* const* srcs, size_t num_srcs,
                       size_t count) {
  exact_kernel<Format>(dst, srcs, num_srcs, count, average ? num_srcs : 1);
  return count;
}

template <class T, size_t lanes>
HCCL_INLINE size_t split_vectors(std::byte* sum, std::byte* addend, size_t begin, size_t count,
                                 bool& is_left) {
  using V = Vector<T, lanes>;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    const V a = load_bytes<V>(sum + i * sizeof(T)), b = load_bytes<V>(addend + i * sizeof(T));
    V error;
    const V total = two_sum(a, b, error);
    const auto is_number = is_finite(total) & is_finite(error);
    const V rest = is_number ? (error == 0 ? -V{} : error) : b;
    store_bytes(sum + i * sizeof(T), is_number ? total : a);
    store_bytes(addend + i * sizeof(T), rest);
    is_left |= any(rest != 0);
  }
  return i;
}

template <class T>
bool split_kernel(std::byte* sum, std::byte* addend, size_t count) {
  FloatingPoint processor;
  bool is_left = false;
  const size_t i = split_vectors<T, vector_bytes / sizeof(T)>(sum, addend, 0, count, is_left);
  split_vectors<T, 1>(sum, addend, i, count, is_left);
  return is_left;
}
