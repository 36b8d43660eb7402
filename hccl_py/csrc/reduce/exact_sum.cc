#include "reduce/exact_sum.h"

#include <bit>
#include <cmath>
#include <initializer_list>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hccl {

namespace {

constexpr int limb_bits = 32;
constexpr int unit = -1106;  // the power of two of bit 0
constexpr int fraction_bits = 52;

}  // namespace

ExactSum::ExactSum() = default;

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const bool is_negative = bits >> 63 != 0;
  const int exponent = static_cast<int>(bits >> fraction_bits & 0x7ff);
  uint64_t magnitude = bits & ((uint64_t{1} << fraction_bits) - 1);
  is_minus_zero_ &= is_negative && exponent == 0 && magnitude == 0;
  if (exponent == 0x7ff) {
    is_nan_ |= magnitude != 0;
    (is_negative ? has_minus_infinity_ : has_plus_infinity_) |= magnitude == 0;
    return;
  }
  if (exponent != 0) magnitude |= uint64_t{1} << fraction_bits;
  const int position = (exponent != 0 ? exponent - 1 : 0) + limb_bits;
  int64_t* limb = limbs_ + position / limb_bits;
  const int shift = position % limb_bits;
  const uint64_t low = magnitude << shift;
  const uint64_t high = shift == 0 ? 0 : magnitude >> (64 - shift);
  for (uint64_t part : {low & 0xffffffff, low >> limb_bits, high}) {
    *limb++ += is_negative ? -static_cast<int64_t>(part) : static_cast<int64_t>(part);
  }
}

// Leaves 32 bits in every limb, and the sign in the last one.
void ExactSum::carry() {
  for (int i = 0; i + 1 < num_limbs; ++i) {
    limbs_[i + 1] += limbs_[i] >> limb_bits;
    limbs_[i] &= 0xffffffff;
  }
}

double ExactSum::rounded(uint32_t divisor, bool to_odd) {
  if (is_nan_ || (has_plus_infinity_ && has_minus_infinity_)) return __builtin_nan("");
  if (has_plus_infinity_) return HUGE_VAL;
  if (has_minus_infinity_) return -HUGE_VAL;
  carry();
  const bool is_negative = limbs_[num_limbs - 1] < 0;
  if (is_negative) {
    for (int64_t& limb : limbs_) limb = -limb;
    carry();
  }
  uint64_t rest = 0;
  int top = -1;  // the highest bit
  for (int i = num_limbs - 1; i >= 0; --i) {
    rest = rest << limb_bits | static_cast<uint64_t>(limbs_[i]);
    limbs_[i] = static_cast<int64_t>(rest / divisor);
    rest %= divisor;
    if (top < 0 && limbs_[i] != 0) {
      top = i * limb_bits + std::bit_width(static_cast<uint64_t>(limbs_[i])) - 1;
    }
  }
  if (top < 0 && rest == 0) return is_minus_zero_ ? -0.0 : 0.0;
  // The bits from the one below the last of the result on.
  const int last = top - fraction_bits > limb_bits ? top - fraction_bits : limb_bits;
  const int limb = (last - 1) / limb_bits, shift = (last - 1) % limb_bits;
  unsigned __int128 window = 0;
  for (int i = 2; i >= 0; --i)
    window = window << limb_bits | static_cast<uint64_t>(limbs_[limb + i]);
  auto magnitude = static_cast<uint64_t>(window >> (shift + 1));
  const bool half = (window >> shift & 1) != 0;
  bool below = rest != 0 || static_cast<uint64_t>(window & ((1u << shift) - 1)) != 0;
  for (int i = 0; i < limb; ++i) below |= limbs_[i] != 0;
  if (to_odd) {
    magnitude |= half || below ? 1 : 0;
  } else {
    magnitude += half && (below || magnitude % 2 == 1) ? 1 : 0;
  }
  const double value = std::ldexp(static_cast<double>(magnitude), last + unit);
  return is_negative ? -value : value;
}

#if defined(__x86_64__)
namespace {

constexpr unsigned usual = 0x1f80;  // no exception traps, to nearest, subnormals, no flag
constexpr unsigned inexact = 0x20;

}  // namespace

FloatingPoint::FloatingPoint() : saved_(_mm_getcsr()) { _mm_setcsr(usual); }
FloatingPoint::~FloatingPoint() { _mm_setcsr(saved_); }
void FloatingPoint::expect_exact(const void*, const void*) { _mm_setcsr(usual); }
bool FloatingPoint::was_exact(const void*, const void*) const {
  return (_mm_getcsr() & inexact) == 0;
}
#else
FloatingPoint::FloatingPoint() {
  std::fegetenv(&saved_);
  std::fesetenv(FE_DFL_ENV);
}
FloatingPoint::~FloatingPoint() { std::fesetenv(&saved_); }
void FloatingPoint::expect_exact(const void*, const void*) { std::feclearexcept(FE_INEXACT); }
bool FloatingPoint::was_exact(const void*, const void*) const {
  return std::fetestexcept(FE_INEXACT) == 0;
}
#endif

}  // namespace hccl
