// What the kernels of exact sums need beside vectors: a sum without rounding, and the processor's
// word on whether arithmetic has rounded.
#pragma once

#include <cfenv>
#include <cstdint>

namespace hccl {

// The sum of up to 2^31 doubles, as an integer of 2^-1106; slow.
class ExactSum {
 public:
  ExactSum();  // not inline: see reduce_dispatch.h
  void add(double value);
  // The sum / `divisor`, rounded once. `to_odd`: if it lies between two doubles, the one whose last
  // bit is odd. Rounding that to 51 bits or fewer gives what rounding the sum itself would give.
  double rounded(uint32_t divisor, bool to_odd);

 private:
  void carry();

  // A double spans three limbs of 32 bits, from limb 1 on; the upper halves take carries, and the
  // limb below takes bits of a quotient.
  static constexpr int num_limbs = 69;
  int64_t limbs_[num_limbs] = {};
  bool is_nan_ = false, has_plus_infinity_ = false, has_minus_infinity_ = false;
  bool is_minus_zero_ = true;  // of all
};

// While it lives, this thread rounds to nearest and keeps subnormals, as a program that calls
// torch.set_flush_denormal(True) does not.
class FloatingPoint {
 public:
  FloatingPoint();
  ~FloatingPoint();
  FloatingPoint(const FloatingPoint&) = delete;

  // Whether all operations since expect_exact() gave their exact results: IEEE 754's flag
  // "inexact", which hardware raises for every lane of a vector. In between the operations read
  // `from` and write `to`; passing these keeps the compiler from moving the operations.
  void expect_exact(const void* from, const void* to);
  bool was_exact(const void* from, const void* to) const;

 private:
#if defined(__x86_64__)
  unsigned saved_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace hccl
