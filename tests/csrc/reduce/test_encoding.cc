// The encodings of float32 on every instruction set, against scalar arithmetic: the same bits,
// within the errors that reduce.h states, nothing written outside, and no bytes of a peer do any
// harm.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "reduce/reduce_dispatch.h"

namespace hccl {
namespace {

using Bytes = std::vector<std::byte>;
using Floats = std::vector<float>;

constexpr Compression compressions[] = {Compression::bf16, Compression::int8};
constexpr size_t sizes[] = {0,  1,  2,  3,   7,   8,   9,   15,  16,  17,   31,  33,
                            63, 65, 99, 255, 256, 257, 300, 511, 513, 1000, 4099};
constexpr size_t guard_bytes = 64;
constexpr std::byte guard{0xa5};
constexpr float infinity = std::numeric_limits<float>::infinity();

std::byte* bytes_of(Floats& floats) { return reinterpret_cast<std::byte*>(floats.data()); }

// Magnitudes from subnormal to huge, so that the scale takes every way; zeros too.
Floats numbers(size_t count, int exponent, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Floats floats(count);
  for (float& one : floats) one = random() % 9 == 0 ? 0 : std::ldexp(normal(random), exponent);
  return floats;
}

Bytes encoded(const ReduceTable& table, Compression compression, Floats values, Floats* residual) {
  size_t length = encoded_bytes(compression, values.size());
  Bytes bytes(length + 2 * guard_bytes + 1, guard);
  std::byte* to = bytes.data() + guard_bytes + 1;  // no alignment
  table.encode[static_cast<size_t>(compression)](
      to, bytes_of(values), residual != nullptr ? bytes_of(*residual) : nullptr, values.size());
  for (size_t i = 0; i <= guard_bytes; ++i) CHECK(bytes[i] == guard);
  for (size_t i = guard_bytes + 1 + length; i < bytes.size(); ++i) CHECK(bytes[i] == guard);
  return {to, to + length};
}

Floats decoded(const ReduceTable& table, Compression compression, const Bytes& bytes,
               size_t count) {
  Floats floats(count + 1, 7);
  table.decode[static_cast<size_t>(compression)](bytes_of(floats), bytes.data(), count);
  CHECK(floats[count] == 7);
  floats.pop_back();
  return floats;
}

// By the words of reduce.h, in scalar arithmetic.
float largest_error(Compression compression, const Floats& values, size_t i) {
  if (compression == Compression::bf16) return std::fabs(values[i]) * 0x1p-8f + 0x1p-133f;
  size_t begin = i / int8_block * int8_block;
  float largest = 0;
  for (size_t j = begin; j < std::min(begin + int8_block, values.size()); ++j) {
    largest = std::max(largest, std::fabs(values[j]));
  }
  return largest / 253 + 0x1p-127f;
}

HCCL_TEST(every_instruction_set_encodes_the_same_bits_within_the_stated_error) {
  std::mt19937_64 random(1);
  for (Compression compression : compressions) {
    for (size_t count : sizes) {
      for (int exponent : {0, -20, 60, -130, -145, 124}) {
        Floats values = numbers(count, exponent, random),
               lost = numbers(count, exponent - 9, random);
        Floats sums = values, first_residual;
        for (size_t i = 0; i < count; ++i) sums[i] += lost[i];
        Bytes plain = encoded(reduce_table_generic, compression, values, nullptr), first;
        for (const ReduceTable* table : usable_reduce_tables()) {
          CHECK(encoded(*table, compression, values, nullptr) == plain, "%s", table->name);
          Floats residual = lost;
          Bytes bytes = encoded(*table, compression, values, &residual);
          Floats result = decoded(*table, compression, bytes, count);
          for (size_t i = 0; i < count; ++i) {
            CHECK(std::fabs(result[i] - sums[i]) <= largest_error(compression, sums, i),
                  "%s: %g of %g\n", table->name, result[i], sums[i]);
            CHECK(residual[i] == sums[i] - result[i]);
          }
          if (first.empty()) first = bytes, first_residual = residual;
          CHECK(bytes == first && residual == first_residual);
          CHECK(decoded(reduce_table_generic, compression, bytes, count) == result);
        }
      }
    }
  }
}

HCCL_TEST(largest_floats_stay_finite_in_int8) {
  Floats values(300, std::numeric_limits<float>::max());
  for (const ReduceTable* table : usable_reduce_tables()) {
    for (float one : decoded(*table, Compression::int8,
                             encoded(*table, Compression::int8, values, nullptr), 300)) {
      CHECK(std::isfinite(one) && one > 0.99f * values[0]);
    }
  }
}

HCCL_TEST(infinity_and_nan_are_not_lost_and_leave_no_residual) {
  for (const ReduceTable* table : usable_reduce_tables()) {
    for (float special : {infinity, -infinity, std::nanf("")}) {
      for (size_t at : {0ul, 5ul, 255ul, 256ul, 298ul}) {
        Floats values(300, 1.5f), residual(300, 0.f);
        values[at] = special;
        Floats kept = decoded(*table, Compression::bf16,
                              encoded(*table, Compression::bf16, values, &residual), 300);
        CHECK(residual == Floats(300, 0.f));
        Floats blocks = decoded(*table, Compression::int8,
                                encoded(*table, Compression::int8, values, &residual), 300);
        for (size_t i = 0; i < 300; ++i) {
          CHECK(std::isfinite(residual[i]));
          CHECK(i == at ? (std::isnan(special) ? std::isnan(kept[i]) : kept[i] == special)
                        : kept[i] == 1.5f);
          CHECK(std::isnan(blocks[i]) == (i / int8_block == at / int8_block));
        }
      }
    }
  }
}

HCCL_TEST(any_bytes_decode_to_the_same_bits_on_every_instruction_set) {
  std::mt19937_64 random(2);
  for (Compression compression : compressions) {
    for (size_t count : sizes) {
      Bytes bytes(encoded_bytes(compression, count));
      for (std::byte& one : bytes) one = static_cast<std::byte>(random());
      Floats first = decoded(reduce_table_generic, compression, bytes, count);
      for (const ReduceTable* table : usable_reduce_tables()) {
        Floats result = decoded(*table, compression, bytes, count);
        CHECK(count == 0 || std::memcmp(result.data(), first.data(), 4 * count) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace hccl
