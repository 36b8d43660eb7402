// Element formats of the reduction kernels: how lanes are loaded into the type they are computed
// in, and stored again. Included only by reduce_kernels.h, under its rules.
//
// A format has `Compute`, the type of a lane; `element_bytes`; `load<lanes>(from)`; and
// `store<lanes>(to, value)`, where `value` may be a NaN only if canonical.

template <class T, size_t lanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(lanes * sizeof(T))));
};
// GCC's vector type, which both compilers split or map onto whatever registers there are. One lane
// is allowed: the tail of a buffer runs through the very same code as its body.
template <class T, size_t lanes>
using Vector = typename VectorOf<T, lanes>::type;

template <class V>
HCCL_INLINE V load_bytes(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
HCCL_INLINE void store_bytes(std::byte* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// Replaces every NaN by the canonical quiet one.
template <size_t lanes, class T>
HCCL_INLINE Vector<T, lanes> canonical_nan(Vector<T, lanes> value) {
  return value == value ? value : Vector<T, lanes>{} + static_cast<T>(__builtin_nan(""));
}

template <class T>
struct Plain {
  using Compute = T;
  static constexpr size_t element_bytes = sizeof(T);

  template <size_t lanes>
  static HCCL_INLINE Vector<T, lanes> load(const std::byte* from) {
    return load_bytes<Vector<T, lanes>>(from);
  }
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<T, lanes> value) {
    store_bytes(to, value);
  }
};

// Any nonzero byte is true.
struct Boolean {
  using Compute = uint8_t;
  static constexpr size_t element_bytes = 1;

  template <size_t lanes>
  static HCCL_INLINE Vector<uint8_t, lanes> load(const std::byte* from) {
    using V = Vector<uint8_t, lanes>;
    return (V)(load_bytes<V>(from) != 0) & 1;
  }
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<uint8_t, lanes> value) {
    store_bytes(to, value);
  }
};

// 16-bit lanes to 32-bit lanes and back. __builtin_convertvector says it all, but GCC 12 makes
// three instructions of what is one. (With a mask of ones: GCC 12 warns of its own plain forms.)
template <size_t lanes>
HCCL_INLINE Vector<uint32_t, lanes> widen(Vector<uint16_t, lanes> value) {
  using U = Vector<uint32_t, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 16) return (U)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 8) return (U)_mm256_cvtepu16_epi32((__m128i)value);
#endif
  return __builtin_convertvector(value, U);
}

// Takes lanes below 2^16.
template <size_t lanes>
HCCL_INLINE Vector<uint16_t, lanes> narrow(Vector<uint32_t, lanes> value) {
  using H = Vector<uint16_t, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 16) return (H)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 8) {
    // Packs each half of the register beside itself; quarters 0 and 2 hold the result.
    const __m256i packed = _mm256_packus_epi32((__m256i)value, (__m256i)value);
    return (H)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
  }
#endif
  return __builtin_convertvector(value, H);
}

struct BFloat16 {
  using Compute = float;
  static constexpr size_t element_bytes = 2;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    return (Vector<float, lanes>)(widen<lanes>(load_bytes<Vector<uint16_t, lanes>>(from)) << 16);
  }
  // Adds just under half a unit of the last place, or exactly half if that place is odd; what
  // carries is the rounding. The canonical NaN has zeros below and does not carry into infinity.
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<float, lanes> value) {
    const auto bits = (Vector<uint32_t, lanes>)value;
    store_bytes(to, narrow<lanes>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
  }
};

// IEEE binary16 where no instruction converts it. Magnitudes are signed integers because SSE2
// compares no others.
template <size_t lanes>
HCCL_INLINE Vector<float, lanes> float16_to_float(Vector<uint16_t, lanes> half) {
  using F = Vector<float, lanes>;
  using I = Vector<int32_t, lanes>;
  constexpr int32_t implied_one = 1 << 23;
  constexpr int32_t bias = (127 - 15) << 23;  // from binary16's exponent bias to binary32's
  const I wide = (I)widen<lanes>(half);
  const I magnitude = (wide & 0x7fff) << 13;
  const I normal = magnitude + bias;
  const I special = normal + bias;  // infinity and NaN: exponent 31 becomes 255
  // A subnormal is a fraction without the implied one: put the one there, subtract it again.
  const F one = (F)(I{} + (bias + implied_one));
  const I subnormal = (I)((F)(normal + implied_one) - one);
  const I finite = magnitude < implied_one ? subnormal : normal;
  const I value = magnitude >= (31 << 23) ? special : finite;
  return (F)(value | (wide & 0x8000) << 16);
}

// Rounds to nearest even. Takes no NaN but the canonical one.
template <size_t lanes>
HCCL_INLINE Vector<uint16_t, lanes> float_to_float16(Vector<float, lanes> value) {
  using F = Vector<float, lanes>;
  using I = Vector<int32_t, lanes>;
  using U = Vector<uint32_t, lanes>;
  constexpr int32_t bias = (127 - 15) << 23;
  const I magnitude = (I)value & 0x7fffffff;
  const I normal = (magnitude - bias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: in 0.5 + x the last place is binary16's smallest step, so the adder rounds.
  const F half = F{} + 0.5f;
  const I subnormal = (I)((F)magnitude + half) - (I)half;
  const I finite = magnitude < bias + (1 << 23) ? subnormal : normal;
  const I special = magnitude > 0x7f800000 ? I{} + 0x7e00 : I{} + 0x7c00;
  const I result = magnitude >= bias + (31 << 23) ? special : finite;
  return narrow<lanes>((U)result | (((U)value & 0x80000000u) >> 16));
}

struct Float16 {
  using Compute = float;
  static constexpr size_t element_bytes = 2;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    using F [[maybe_unused]] = Vector<float, lanes>;
    const auto half = load_bytes<Vector<uint16_t, lanes>>(from);
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
    return float16_to_float<lanes>(half);
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
    store_bytes(to, float_to_float16<lanes>(value));
  }
};
