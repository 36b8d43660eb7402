#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HCCL_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define HCCL_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace hccl {

namespace {

constexpr uint32_t polynomial = 0x82f63b78;  // reflected

consteval std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t sum = i;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) ? polynomial : 0);
    table[i] = sum;
  }
  return table;
}

constexpr std::array<uint32_t, 256> table = make_table();

#ifdef HCCL_CRC_TARGET

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
HCCL_CRC_TARGET uint64_t with_word(uint64_t sum, uint64_t word) { return _mm_crc32_u64(sum, word); }
HCCL_CRC_TARGET uint32_t with_byte(uint32_t sum, uint8_t byte) { return _mm_crc32_u8(sum, byte); }
#else
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
HCCL_CRC_TARGET uint32_t with_word(uint32_t sum, uint64_t word) { return __crc32cd(sum, word); }
HCCL_CRC_TARGET uint32_t with_byte(uint32_t sum, uint8_t byte) { return __crc32cb(sum, byte); }
#endif
using Sum = decltype(with_word(0, 0));  // as wide as the instruction has it

// The instruction has a latency of three cycles and a throughput of one: three sums at a time, over
// three neighbouring blocks, are joined by shifting the first two over the zeros that follow them.
constexpr size_t block_bytes = 4096;

// What `block_bytes` zero bytes make of each byte of a sum.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr uint32_t times(const std::array<uint32_t, 32>& matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (size_t i = 0; vector; vector >>= 1, ++i) {
    if (vector & 1) sum ^= matrix[i];
  }
  return sum;
}

consteval Shift make_shift(size_t num_bytes) {
  std::array<uint32_t, 32> power{};  // one zero bit
  power[0] = polynomial;
  for (size_t i = 1; i < 32; ++i) power[i] = uint32_t{1} << (i - 1);
  for (size_t bits = 1; bits < num_bytes * 8; bits *= 2) {  // a power of two
    std::array<uint32_t, 32> square{};
    for (size_t i = 0; i < 32; ++i) square[i] = times(power, power[i]);
    power = square;
  }
  Shift shift{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t i = 0; i < 4; ++i) shift[i][byte] = times(power, byte << (8 * i));
  }
  return shift;
}

constexpr Shift over_block = make_shift(block_bytes);

uint32_t shifted(uint32_t sum) {
  return over_block[0][sum & 0xff] ^ over_block[1][(sum >> 8) & 0xff] ^
         over_block[2][(sum >> 16) & 0xff] ^ over_block[3][sum >> 24];
}

uint64_t word_at(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

HCCL_CRC_TARGET uint32_t by_instruction(const void* begin, size_t size) {
  auto* bytes = static_cast<const unsigned char*>(begin);
  Sum sum = ~uint32_t{0};
  for (; size >= 3 * block_bytes; size -= 3 * block_bytes, bytes += 3 * block_bytes) {
    Sum second = 0, third = 0;
    for (size_t i = 0; i < block_bytes; i += 8) {
      sum = with_word(sum, word_at(bytes + i));
      second = with_word(second, word_at(bytes + block_bytes + i));
      third = with_word(third, word_at(bytes + 2 * block_bytes + i));
    }
    sum = shifted(static_cast<uint32_t>(sum)) ^ second;
    sum = shifted(static_cast<uint32_t>(sum)) ^ third;
  }
  for (; size >= 8; size -= 8, bytes += 8) sum = with_word(sum, word_at(bytes));
  auto rest = static_cast<uint32_t>(sum);
  for (; size; --size, ++bytes) rest = with_byte(rest, *bytes);
  return ~rest;
}

#endif

}  // namespace

uint32_t crc32c_by_table(const void* begin, size_t size) {
  auto* bytes = static_cast<const unsigned char*>(begin);
  uint32_t sum = ~uint32_t{0};
  for (size_t i = 0; i < size; ++i) sum = (sum >> 8) ^ table[(sum ^ bytes[i]) & 0xff];
  return ~sum;
}

uint32_t crc32c(const void* bytes, size_t size) {
#ifdef HCCL_CRC_TARGET
  if (has_instruction()) return by_instruction(bytes, size);
#endif
  return crc32c_by_table(bytes, size);
}

}  // namespace hccl
