// What a reduction must give, one element at a time: written to be read, and without a line of the
// kernels. 16-bit floats go through double and libm instead of bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/types.h"
#include "reduce/exact_sum.h"

namespace hccl::oracle {

using Bytes = std::vector<std::byte>;

template <class T>
T get(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

// A codec turns an element into the number that is computed with, and back.
template <class T>
struct Native {
  using Number = T;
  static T decode(const std::byte* from, size_t i) { return get<T>(from, i); }
  static void encode(std::byte* to, size_t i, T value) {
    // Of the many NaNs the kernels promise one.
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) value = std::copysign(static_cast<T>(NAN), T{1});
    }
    put(to, i, value);
  }
};

struct Bool {
  using Number = bool;
  static bool decode(const std::byte* from, size_t i) { return get<uint8_t>(from, i) != 0; }
  static void encode(std::byte* to, size_t i, bool value) { put<uint8_t>(to, i, value); }
};

struct BFloat16 {
  using Number = float;
  static float decode(const std::byte* from, size_t i) {
    const uint32_t bits = static_cast<uint32_t>(get<uint16_t>(from, i)) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static void encode(std::byte* to, size_t i, float value) {
    if (std::isnan(value)) return put<uint16_t>(to, i, 0x7fc0);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t below = bits & 0xffff;
    uint16_t kept = static_cast<uint16_t>(bits >> 16);
    if (below > 0x8000 || (below == 0x8000 && kept % 2 == 1)) ++kept;
    put(to, i, kept);
  }
};

struct Float16 {
  using Number = float;
  static float decode(const std::byte* from, size_t i) {
    const uint16_t bits = get<uint16_t>(from, i);
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double magnitude = std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 0) magnitude = std::ldexp(fraction, -24);
    if (exponent == 31) magnitude = fraction == 0 ? HUGE_VAL : NAN;
    return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
  }
  static void encode(std::byte* to, size_t i, float value) {
    if (std::isnan(value)) return put<uint16_t>(to, i, 0x7e00);
    const double magnitude = std::fabs(value);
    int bits;
    if (magnitude >= 65520) {
      bits = 0x7c00;
    } else if (magnitude < std::ldexp(1, -14)) {
      bits = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24)));
    } else {
      const int exponent = std::ilogb(magnitude);
      const int fraction = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
      bits = (exponent + 14) * 1024 + fraction;  // fraction has its leading one, 1024
    }
    put<uint16_t>(to, i, static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0)));
  }
};

// 8-bit floats: what a code means, and the code whose meaning is nearest, of all there are.
template <DType dtype>
struct Float8 {
  using Number = float;
  static constexpr bool is_e4m3 = dtype == DType::float8_e4m3fn || dtype == DType::float8_e4m3fnuz;
  static constexpr bool is_fnuz =
      dtype == DType::float8_e4m3fnuz || dtype == DType::float8_e5m2fnuz;
  static constexpr int fraction = is_e4m3 ? 3 : 2;
  static constexpr int bias = (is_e4m3 ? 7 : 15) + (is_fnuz ? 1 : 0);
  static constexpr int largest = is_fnuz ? 0x7f : is_e4m3 ? 0x7e : 0x7b;

  static double magnitude(int code) {
    const int exponent = code >> fraction, part = code & ((1 << fraction) - 1);
    if (exponent == 0) return std::ldexp(part, 1 - bias - fraction);
    return std::ldexp(part + (1 << fraction), exponent - bias - fraction);
  }
  static float decode(const std::byte* from, size_t i) {
    const int bits = get<uint8_t>(from, i), code = bits & 0x7f;
    if (is_fnuz ? bits == 0x80 : code > largest + (is_e4m3 ? 0 : 1)) return NAN;
    const double value = code > largest ? HUGE_VAL : magnitude(code);
    return static_cast<float>(bits & 0x80 ? -value : value);
  }
  static void encode(std::byte* to, size_t i, float value) {
    if (std::isnan(value)) return put<uint8_t>(to, i, is_fnuz ? 0x80 : 0x7f);
    const double wanted = std::fabs(value);
    int code = 0;  // the last one that is not above; one more than there are is what overflows
    while (code <= largest && magnitude(code + 1) <= wanted) ++code;
    if (code <= largest) {
      const double below = wanted - magnitude(code), above = magnitude(code + 1) - wanted;
      if (below > above || (below == above && code % 2 == 1)) ++code;
    }
    if (dtype == DType::float8_e4m3fn) {
      code = std::min(code, largest);  // has no infinity: saturates
    }
    const bool negative = std::signbit(value) && !(is_fnuz && code == 0);
    put<uint8_t>(to, i, static_cast<uint8_t>(code | (negative ? 0x80 : 0)));
  }
};

struct Float8E8M0 {
  using Number = float;
  static float decode(const std::byte* from, size_t i) {
    const int code = get<uint8_t>(from, i);
    return code == 255 ? NAN : static_cast<float>(std::ldexp(1.0, code - 127));
  }
  static void encode(std::byte* to, size_t i, float value) {
    const double wanted = std::fabs(value);
    int code = wanted > std::ldexp(1, -127) ? 1 : 0;
    // Half way between two goes up.
    while (code > 0 && code < 255 && wanted >= std::ldexp(1.5, code - 127)) ++code;
    put<uint8_t>(to, i, static_cast<uint8_t>(std::isnan(value) ? 255 : code));
  }
};

template <class T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return static_cast<T>(NAN);
    const bool is_min = op == ReduceOp::min;  // -0 is less than 0
    if (a == b && (is_min || op == ReduceOp::max)) return std::signbit(a) == is_min ? a : b;
  }
  switch (op) {
    case ReduceOp::min: return b < a ? b : a;
    case ReduceOp::max: return b > a ? b : a;
    default: break;
  }
  if constexpr (std::is_same_v<T, bool>) {
    if (op == ReduceOp::sum || op == ReduceOp::bor) return a || b;
    if (op == ReduceOp::product || op == ReduceOp::band) return a && b;
    return a != b;
  } else if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::product ? a * b : a + b;
  } else {
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    if (op == ReduceOp::product) return static_cast<T>(x * y);
    if (op == ReduceOp::band) return static_cast<T>(x & y);
    if (op == ReduceOp::bor) return static_cast<T>(x | y);
    if (op == ReduceOp::bxor) return static_cast<T>(x ^ y);
    return static_cast<T>(x + y);
  }
}

// Calls work.template operator()<Codec>() for the dtype's codec.
template <class Work>
void with_codec(DType dtype, Work work) {
  switch (dtype) {
    case DType::float32: return work.template operator()<Native<float>>();
    case DType::float64: return work.template operator()<Native<double>>();
    case DType::float16: return work.template operator()<Float16>();
    case DType::bfloat16: return work.template operator()<BFloat16>();
    case DType::int8: return work.template operator()<Native<int8_t>>();
    case DType::uint8: return work.template operator()<Native<uint8_t>>();
    case DType::int16: return work.template operator()<Native<int16_t>>();
    case DType::uint16: return work.template operator()<Native<uint16_t>>();
    case DType::int32: return work.template operator()<Native<int32_t>>();
    case DType::uint32: return work.template operator()<Native<uint32_t>>();
    case DType::int64: return work.template operator()<Native<int64_t>>();
    case DType::uint64: return work.template operator()<Native<uint64_t>>();
    case DType::boolean: return work.template operator()<Bool>();
    case DType::float8_e4m3fn: return work.template operator()<Float8<DType::float8_e4m3fn>>();
    case DType::float8_e5m2: return work.template operator()<Float8<DType::float8_e5m2>>();
    case DType::float8_e4m3fnuz: return work.template operator()<Float8<DType::float8_e4m3fnuz>>();
    case DType::float8_e5m2fnuz: return work.template operator()<Float8<DType::float8_e5m2fnuz>>();
    case DType::float8_e8m0fnu: return work.template operator()<Float8E8M0>();
  }
}

// The exact sum, rounded to odd on the way: ExactSum has tests of its own, in Python.
template <class Codec>
typename Codec::Number exact(DType dtype, ReduceOp op, const std::vector<Bytes>& srcs, size_t i) {
  using Number = typename Codec::Number;
  ExactSum sum;
  for (const Bytes& src : srcs) sum.add(Codec::decode(src.data(), i));
  const uint32_t divisor = op == ReduceOp::exact_avg ? static_cast<uint32_t>(srcs.size()) : 1;
  const double value = sum.rounded(divisor, size_of(dtype) < 8);
  Number number = static_cast<Number>(value);
  if (size_of(dtype) >= 4 || std::isnan(value) || number == value) return number;
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const auto towards = static_cast<Number>(value > number ? HUGE_VAL : -HUGE_VAL);
  return bits % 2 == 1 ? number : std::nextafter(number, towards);
}

// The reduction of equally long sources; a single one is copied, bit by bit.
inline Bytes reduced(DType dtype, ReduceOp op, const std::vector<Bytes>& srcs) {
  Bytes result = srcs[0];
  if (srcs.size() == 1) return result;
  with_codec(dtype, [&]<class Codec>() {
    for (size_t i = 0; i < result.size() / size_of(dtype); ++i) {
      auto total = Codec::decode(srcs[0].data(), i);
      for (size_t s = 1; s < srcs.size(); ++s) {
        total = combine(op, total, Codec::decode(srcs[s].data(), i));
      }
      if constexpr (std::is_same_v<decltype(total), float>) {
        const bool averages = reduces_in_one_step(dtype) && op == ReduceOp::avg;
        if (averages) total /= static_cast<float>(srcs.size());
      }
      if constexpr (std::is_floating_point_v<decltype(total)>) {
        if (op >= ReduceOp::exact_sum) total = exact<Codec>(dtype, op, srcs, i);
      }
      Codec::encode(result.data(), i, total);
    }
  });
  return result;
}

// How many elements reduce() gets through: of an average up to the first that overflows.
inline size_t num_in_range(DType dtype, ReduceOp op, const std::vector<Bytes>& srcs,
                           const Bytes& sums) {
  size_t count = sums.size() / size_of(dtype);
  if (op != ReduceOp::avg || reduces_in_one_step(dtype) || srcs.size() == 1) return count;
  with_codec(dtype, [&]<class Codec>() {
    if constexpr (std::is_floating_point_v<typename Codec::Number>) {
      for (size_t i = 0; i < count; ++i) {
        const auto is_finite = [&](const Bytes& one) {
          return std::isfinite(Codec::decode(one.data(), i));
        };
        if (!is_finite(sums) && std::all_of(srcs.begin(), srcs.end(), is_finite)) count = i;
      }
    }
  });
  return count;
}

inline Bytes multiplied(DType dtype, const Bytes& data, double factor) {
  Bytes result = data;
  with_codec(dtype, [&]<class Codec>() {
    using Number = typename Codec::Number;
    if constexpr (std::is_floating_point_v<Number>) {
      for (size_t i = 0; i < data.size() / size_of(dtype); ++i) {
        const Number number = Codec::decode(data.data(), i);
        Codec::encode(result.data(), i, number * static_cast<Number>(factor));
      }
    }
  });
  return result;
}

// The largest number of a type, bit by bit from the highest.
template <class Codec>
typename Codec::Number largest() {
  using Number = typename Codec::Number;
  Bytes one(sizeof(Number));
  Number found = 0, bit = std::ldexp(Number{1}, std::numeric_limits<Number>::max_exponent - 1);
  for (; found + bit != found; bit /= 2) {
    Codec::encode(one.data(), 0, found + bit);
    const Number decoded = Codec::decode(one.data(), 0);
    if (std::isfinite(decoded) && decoded == found + bit) found = decoded;
  }
  return found;
}

inline Bytes scaled(DType dtype, const Bytes& data, double divisor) {
  Bytes result = data;
  with_codec(dtype, [&]<class Codec>() {
    using Number = typename Codec::Number;
    for (size_t i = 0; i < data.size() / size_of(dtype); ++i) {
      const Number number = Codec::decode(data.data(), i);
      if constexpr (std::is_floating_point_v<Number>) {
        const Number quotient = number / static_cast<Number>(divisor);
        Codec::encode(result.data(), i, quotient);
        if (std::isfinite(number) && !std::isfinite(Codec::decode(result.data(), i))) {
          Codec::encode(result.data(), i, std::copysign(largest<Codec>(), quotient));
        }
      } else {
        // In 128 bits every element and every divisor fits, so this is the plain quotient.
        const __int128 wide = number;
        Codec::encode(result.data(), i, static_cast<Number>(wide / static_cast<int>(divisor)));
      }
    }
  });
  return result;
}

}  // namespace hccl::oracle
