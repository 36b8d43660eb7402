// The encodings of float32 that reduce.h describes. Included only by reduce_kernels.h, under its
// rules. A quotient is never contracted with the sum that rounds it, and the products that a
// residual is computed from are exact: every table gives the same bits.

constexpr size_t float_lanes = vector_bytes / sizeof(float);

// The error of an encoding; 0 where that is not a number, or every later result would be none.
template <size_t lanes>
HCCL_INLINE Vector<float, lanes> finite_or_zero(Vector<float, lanes> lost) {
  return lost - lost == 0 ? lost : Vector<float, lanes>{};
}

template <size_t lanes>
HCCL_INLINE size_t encode_bf16_vectors(std::byte* to, const std::byte* from, std::byte* residual,
                                       size_t begin, size_t count) {
  using F = Vector<float, lanes>;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    F value = load_bytes<F>(from + 4 * i);
    if (residual != nullptr) value += load_bytes<F>(residual + 4 * i);
    value = canonical_nan<lanes, float>(value);
    BFloat16::store<lanes>(to + 2 * i, value);
    if (residual == nullptr) continue;
    const F lost = value - BFloat16::load<lanes>(to + 2 * i);
    store_bytes(residual + 4 * i, finite_or_zero<lanes>(lost));
  }
  return i;
}

void encode_bf16(std::byte* to, const std::byte* from, std::byte* residual, size_t count) {
  const size_t i = encode_bf16_vectors<float_lanes>(to, from, residual, 0, count);
  encode_bf16_vectors<1>(to, from, residual, i, count);
}

template <size_t lanes>
HCCL_INLINE size_t decode_bf16_vectors(std::byte* to, const std::byte* from, size_t begin,
                                       size_t count) {
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    store_bytes(to + 4 * i, BFloat16::load<lanes>(from + 2 * i));
  }
  return i;
}

void decode_bf16(std::byte* to, const std::byte* from, size_t count) {
  const size_t i = decode_bf16_vectors<float_lanes>(to, from, 0, count);
  decode_bf16_vectors<1>(to, from, i, count);
}

// Bits of a float without its sign: as integers they are in the order of the magnitudes, infinity
// above all numbers and NaN above infinity.
constexpr int32_t magnitude_bits = 0x7fffffff;
constexpr int32_t infinity_bits = 0x7f800000;

// The largest magnitude so far. With a residual, the sum replaces it: the second pass reads it.
template <size_t lanes>
HCCL_INLINE size_t find_largest(const std::byte* from, std::byte* residual, size_t begin,
                                size_t count, int32_t& largest) {
  using F = Vector<float, lanes>;
  using I = Vector<int32_t, lanes>;
  I most{};
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    F value = load_bytes<F>(from + 4 * i);
    if (residual != nullptr) {
      value += load_bytes<F>(residual + 4 * i);
      store_bytes(residual + 4 * i, value);
    }
    const I magnitude = (I)value & magnitude_bits;
    most = magnitude > most ? magnitude : most;
  }
  for (size_t lane = 0; lane < lanes; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  return i;
}

template <size_t lanes>
HCCL_INLINE size_t quantize(std::byte* to, const std::byte* from, std::byte* residual, float scale,
                            size_t begin, size_t count) {
  using F = Vector<float, lanes>;
  using I = Vector<int32_t, lanes>;
  // In 1.5 * 2^23 + x the last place is 1, so the adder rounds.
  const F magic = F{} + 12582912.0f;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    const F value = load_bytes<F>((residual != nullptr ? residual : from) + 4 * i);
    const F rounded = value / scale + magic;
    store_bytes(to + i, narrow<uint8_t, lanes>(((I)rounded - (I)magic) & 0xff));
    if (residual == nullptr) continue;
    const F lost = value - (rounded - magic) * scale;
    store_bytes(residual + 4 * i, lost);
  }
  return i;
}

void encode_int8_block(std::byte* to, const std::byte* from, std::byte* residual, size_t count) {
  int32_t largest = 0;
  size_t i = find_largest<float_lanes>(from, residual, 0, count, largest);
  find_largest<1>(from, residual, i, count, largest);
  if (largest >= infinity_bits) {
    store_bytes(to, static_cast<float>(__builtin_nan("")));
    __builtin_memset(to + sizeof(float), 0, count);
    if (residual != nullptr) __builtin_memset(residual, 0, count * sizeof(float));
    return;
  }
  float magnitude;
  __builtin_memcpy(&magnitude, &largest, sizeof magnitude);
  magnitude /= 127;
  __builtin_memcpy(&largest, &magnitude, sizeof largest);
  largest &= ~0xff;
  constexpr int32_t least = 1 << 23;  // 2^-126: whose products are never subnormal
  largest = largest > least ? largest : least;
  float scale;
  __builtin_memcpy(&scale, &largest, sizeof scale);
  store_bytes(to, scale);
  to += sizeof scale;
  i = quantize<float_lanes>(to, from, residual, scale, 0, count);
  quantize<1>(to, from, residual, scale, i, count);
}

void encode_int8(std::byte* to, const std::byte* from, std::byte* residual, size_t count) {
  for (size_t begin = 0; begin < count; begin += int8_block) {
    const size_t length = count - begin < int8_block ? count - begin : int8_block;
    std::byte* lost = residual == nullptr ? nullptr : residual + begin * sizeof(float);
    encode_int8_block(to, from + begin * sizeof(float), lost, length);
    to += sizeof(float) + length;
  }
}

template <size_t lanes>
HCCL_INLINE size_t scale_up(std::byte* to, const std::byte* from, float scale, size_t begin,
                            size_t count) {
  using I = Vector<int32_t, lanes>;
  size_t i = begin;
  for (; count - i >= lanes; i += lanes) {
    const I code = widen<lanes>(load_bytes<Vector<uint8_t, lanes>>(from + i));
    const I value = (code ^ 0x80) - 0x80;  // extends the sign
    store_bytes(to + 4 * i, __builtin_convertvector(value, Vector<float, lanes>) * scale);
  }
  return i;
}

void decode_int8(std::byte* to, const std::byte* from, size_t count) {
  for (size_t begin = 0; begin < count; begin += int8_block) {
    const size_t length = count - begin < int8_block ? count - begin : int8_block;
    const float scale = load_bytes<float>(from);
    from += sizeof scale;
    std::byte* block = to + begin * sizeof(float);
    const size_t i = scale_up<float_lanes>(block, from, scale, 0, length);
    scale_up<1>(block, from, scale, i, length);
    from += length;
  }
}
