#include "base/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hccl {

#if defined(__x86_64__)

namespace {

// Below this, memcpy uses no string instruction.
constexpr size_t min_loop_bytes = 1024;

__attribute__((target("avx2"))) void copy_by_avx2(std::byte* to, const std::byte* from,
                                                  size_t num_bytes) {
  constexpr size_t step = 4 * sizeof(__m256i);
  for (; num_bytes >= step; num_bytes -= step, to += step, from += step) {
    auto* in = reinterpret_cast<const __m256i*>(from);
    auto* out = reinterpret_cast<__m256i*>(to);
    __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    _mm256_storeu_si256(out, a);
    _mm256_storeu_si256(out + 1, b);
    _mm256_storeu_si256(out + 2, c);
    _mm256_storeu_si256(out + 3, d);
    asm volatile("" ::: "memory");  // otherwise a compiler may turn the loop into memcpy
  }
  std::memcpy(to, from, num_bytes);
}

}  // namespace

void copy(std::byte* to, const std::byte* from, size_t num_bytes) {
  if (num_bytes >= min_loop_bytes && __builtin_cpu_supports("avx2")) {
    copy_by_avx2(to, from, num_bytes);
  } else {
    std::memcpy(to, from, num_bytes);
  }
}

void copy_past_caches(std::byte* to, const std::byte* from, size_t num_bytes) {
  constexpr size_t line = 64;
  size_t head = std::min(num_bytes, -reinterpret_cast<uintptr_t>(to) % line);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  for (num_bytes -= head; num_bytes >= line; num_bytes -= line, to += line, from += line) {
    for (size_t at = 0; at < line; at += sizeof(__m128i)) {
      __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), part);
    }
  }
  std::memcpy(to, from, num_bytes);
  _mm_sfence();  // no later store, not even a release, is ordered after these without it
}

#else

void copy(std::byte* to, const std::byte* from, size_t num_bytes) {
  std::memcpy(to, from, num_bytes);
}

void copy_past_caches(std::byte* to, const std::byte* from, size_t num_bytes) {
  std::memcpy(to, from, num_bytes);
}

#endif

}  // namespace hccl
