// Element formats of the reduction kernels: how lanes are loaded into the type they are computed
// in, and stored again. Included only by reduce_kernels.h, under its rules.
//
// A format has `Compute`, the type of a lane; `element_bytes`; `load<lanes>(from)`; and
// `store<lanes>(to, value)`, where `value` may be a NaN only if canonical. A float of 16 bits or
// more has `largest_sum`, the largest value that is stored as a number and not as infinity.

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
  static constexpr T largest_sum = std::numeric_limits<T>::max();

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
struct Boolean : Plain<uint8_t> {
  template <size_t lanes>
  static HCCL_INLINE Vector<uint8_t, lanes> load(const std::byte* from) {
    using V = Vector<uint8_t, lanes>;
    return (V)(load_bytes<V>(from) != 0) & 1;
  }
};

// Small lanes to 32-bit lanes and back. __builtin_convertvector says it all, but GCC 12 makes three
// instructions of what is one. (With a mask of ones: GCC 12 warns of its own plain forms.)
template <size_t lanes>
HCCL_INLINE Vector<int32_t, lanes> widen(Vector<uint16_t, lanes> value) {
  using I = Vector<int32_t, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 16) return (I)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 8) return (I)_mm256_cvtepu16_epi32((__m128i)value);
  if constexpr (lanes == 4) return (I)_mm_cvtepu16_epi32(_mm_set_epi64x(0, (int64_t)value));
#endif
  return __builtin_convertvector(value, I);
}

template <size_t lanes>
HCCL_INLINE Vector<int32_t, lanes> widen(Vector<uint8_t, lanes> value) {
  using I = Vector<int32_t, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 16) return (I)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)value);
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 8) return (I)_mm256_cvtepu8_epi32(_mm_set_epi64x(0, (int64_t)value));
#endif
  return __builtin_convertvector(value, I);
}

// Takes lanes that fit into a `Bits`.
template <class Bits, size_t lanes>
HCCL_INLINE Vector<Bits, lanes> narrow(Vector<int32_t, lanes> value) {
  using B = Vector<Bits, lanes>;
#if HCCL_VECTOR_BYTES >= 64
  if constexpr (lanes == 16 && sizeof(Bits) == 2) {
    return (B)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)value);
  }
  if constexpr (lanes == 16 && sizeof(Bits) == 1) {
    return (B)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)value);
  }
#endif
#if HCCL_VECTOR_BYTES >= 32
  if constexpr (lanes == 8 && sizeof(Bits) == 2) {
    // Packs each half of the register beside itself; quarters 0 and 2 hold the result.
    const __m256i packed = _mm256_packus_epi32((__m256i)value, (__m256i)value);
    return (B)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000));
  }
  if constexpr (lanes == 8 && sizeof(Bits) == 1) {
    const __m256i wide = (__m256i)value;
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    return (B)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
  }
#endif
  return __builtin_convertvector(value, B);
}

struct BFloat16 {
  using Compute = float;
  static constexpr size_t element_bytes = 2;
  static constexpr float largest_sum = 0x1.fefffep+127f;

  template <size_t lanes>
  static HCCL_INLINE Vector<float, lanes> load(const std::byte* from) {
    return (Vector<float, lanes>)(widen<lanes>(load_bytes<Vector<uint16_t, lanes>>(from)) << 16);
  }
  // Adds just under half a unit of the last place, or exactly half if that place is odd; what
  // carries is the rounding. The canonical NaN has zeros below and does not carry into infinity.
  template <size_t lanes>
  static HCCL_INLINE void store(std::byte* to, Vector<float, lanes> value) {
    const auto bits = (Vector<uint32_t, lanes>)value;
    const auto rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    store_bytes(to, narrow<uint16_t, lanes>((Vector<int32_t, lanes>)rounded));
  }
};
