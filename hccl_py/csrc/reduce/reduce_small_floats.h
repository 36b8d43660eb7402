// The floats of 8 bits, and of 16 with the exponent of IEEE, by their numbers. Included only by
// reduce_kernels.h, under its rules, after reduce_formats.h, whose concept of a format they follow.

// An IEEE-like float with a sign, `fraction` bits of fraction and the others of exponent.
// Magnitudes are signed integers because SSE2 compares no others.
//
// Magnitudes above `largest` are no numbers; those that round beyond it become `overflow`, a NaN
// becomes `nan`, both with the sign that it has. `unsigned_zero`: the code of -0 is the only NaN.
template <class Bits, int fraction, int bias, int largest, int overflow, int nan,
          bool unsigned_zero = false>
struct SmallFloat {
  using Compute = float;
  static constexpr size_t element_bytes = sizeof(Bits);
  static constexpr int sign_bit = 1 << (8 * sizeof(Bits) - 1);
  static constexpr int sign_shift = 32 - 8 * sizeof(Bits);
  static constexpr int shift = 23 - fraction;
  static constexpr int32_t rebias = (127 - bias) << 23;
  static constexpr int32_t implied_one = 1 << 23;
  static constexpr bool has_infinity = overflow > largest&& overflow != nan;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    using F = Vector<float, lanes>;
    using I = Vector<int32_t, lanes>;
    const I wide = widen<lanes>(load_bytes<Vector<Bits, lanes>>(from));
    const I code = wide & (sign_bit - 1);
    const I magnitude = code << shift;
    const I normal = magnitude + rebias;
    // A subnormal is a fraction without the implied one: put the one there, subtract it again.
    const F one = (F)(I{} + (rebias + implied_one));
    const I subnormal = (I)((F)(normal + implied_one) - one);
    I value = magnitude < implied_one ? subnormal : normal;
    const I not_a_number = I{} + 0x7fc00000;
    if constexpr (unsigned_zero) {
      value = wide == sign_bit ? not_a_number : value;
    } else {
      value = code > largest ? not_a_number : value;
    }
    if constexpr (has_infinity) value = code == overflow ? I{} + 0x7f800000 : value;
    return (F)(value | (wide & sign_bit) << sign_shift);
  }

  // Rounds to nearest even, once.
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<float, lanes> value) {
    using F = Vector<float, lanes>;
    using I = Vector<int32_t, lanes>;
    constexpr int32_t half = (1 << (shift - 1)) - 1;
    const I magnitude = (I)value & 0x7fffffff;
    const I normal = (magnitude - rebias + half + ((magnitude >> shift) & 1)) >> shift;
    // In 2^n + x, with this n, the last place is the smallest step, so the adder rounds.
    const F magic = (F)(I{} + ((127 + 24 - bias - fraction) << 23));
    const I subnormal = (I)((F)magnitude + magic) - (I)magic;
    I code = magnitude < rebias + implied_one ? subnormal : normal;
    // Overrides the rounded code: beyond these bounds the shift is undefined.
    code = (code > largest) | (magnitude >= 0x7f800000) ? I{} + overflow : code;
    code = magnitude > 0x7f800000 ? I{} + nan : code;
    const I sign = (I)(((Vector<uint32_t, lanes>)value & 0x80000000u) >> sign_shift);
    if constexpr (unsigned_zero) {
      code = (code == 0) | (code == nan) ? code : code | sign;
    } else {
      code = code | sign;
    }
    store_bytes(to, narrow<Bits, lanes>(code));
  }
};

// Saturates, infinities too, as torch's conversion does.
using Float8E4M3FN = SmallFloat<uint8_t, 3, 7, 0x7e, 0x7e, 0x7f>;
using Float8E5M2 = SmallFloat<uint8_t, 2, 15, 0x7b, 0x7c, 0x7f>;
using Float8E4M3FNUZ = SmallFloat<uint8_t, 3, 8, 0x7f, 0x80, 0x80, true>;
using Float8E5M2FNUZ = SmallFloat<uint8_t, 2, 16, 0x7f, 0x80, 0x80, true>;

// A power of two, by its exponent; no sign, no zero.
struct Float8E8M0FNU {
  using Compute = float;
  static constexpr size_t element_bytes = 1;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    using I = Vector<int32_t, lanes>;
    const I code = widen<lanes>(load_bytes<Vector<uint8_t, lanes>>(from));
    const I value = code == 0 ? I{} + 0x00400000 : code << 23;  // 2^-127 is subnormal
    return (Vector<float, lanes>)(code == 0xff ? I{} + 0x7fc00000 : value);
  }

  // Rounds to nearest; of two that are as near the larger, but for 2^-128. Signs are dropped.
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<float, lanes> value) {
    using I = Vector<int32_t, lanes>;
    using U = Vector<uint32_t, lanes>;
    const I magnitude = (I)value & 0x7fffffff;
    // Unsigned: the sum of a NaN's bits leaves the signed numbers.
    const I rounded = (I)(((U)magnitude + 0x00400000u) >> 23);
    const I code = magnitude <= 0x00400000 ? I{} : rounded;
    const I result = magnitude >= 0x7f800000 ? I{} + 0xff : code;
    store_bytes(to, narrow<uint8_t, lanes>(result));
  }
};

// By the processor's instruction if it has one.
struct Float16 : SmallFloat<uint16_t, 10, 15, 0x7bff, 0x7c00, 0x7e00> {
  static constexpr float largest_sum = 0x1.ffdffep+15f;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    using F [[maybe_unused]] = Vector<float, lanes>;
    [[maybe_unused]] const auto half = load_bytes<Vector<uint16_t, lanes>>(from);
#if HCCL_VECTOR_BYTES >= 64
    if constexpr (lanes == 16) return (F)_mm512_maskz_cvtph_ps(0xffff, (__m256i)half);
#endif
#if HCCL_VECTOR_BYTES >= 32
    if constexpr (lanes == 8) return (F)_mm256_cvtph_ps((__m128i)half);
    if constexpr (lanes == 4) return (F)_mm_cvtph_ps(_mm_set_epi64x(0, (int64_t)half));
    if constexpr (lanes == 1) return F{_cvtsh_ss(half[0])};
#elif defined(__aarch64__)
    if constexpr (lanes == 4) return (F)vcvt_f32_f16((float16x4_t)half);
#endif
    return SmallFloat::load<lanes>(from);
  }

  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<float, lanes> value) {
    using H [[maybe_unused]] = Vector<uint16_t, lanes>;
#if HCCL_VECTOR_BYTES >= 32
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT;
#endif
#if HCCL_VECTOR_BYTES >= 64
    if constexpr (lanes == 16) {
      return store_bytes(to, (H)_mm512_maskz_cvtps_ph(0xffff, (__m512)value, nearest));
    }
#endif
#if HCCL_VECTOR_BYTES >= 32
    if constexpr (lanes == 8) return store_bytes(to, (H)_mm256_cvtps_ph((__m256)value, nearest));
    if constexpr (lanes == 4) {
      return store_bytes(to, _mm_cvtsi128_si64(_mm_cvtps_ph((__m128)value, nearest)));
    }
    if constexpr (lanes == 1) return store_bytes(to, H{_cvtss_sh(value[0], nearest)});
#elif defined(__aarch64__)
    if constexpr (lanes == 4) return store_bytes(to, (H)vcvt_f16_f32((float32x4_t)value));
#endif
    SmallFloat::store<lanes>(to, value);
  }
};
