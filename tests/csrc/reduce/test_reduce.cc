// Every dtype x op, on every instruction set this processor has, against a scalar oracle: the same
// bits, nothing written outside the destination, whatever the alignment, length or aliasing.
#include "reduce/reduce.h"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <string_view>

#include "check.h"
#include "reduce/reduce_dispatch.h"
#include "reduce_oracle.h"

namespace hccl {
namespace {

using oracle::Bytes;

constexpr size_t guard_bytes = 64;
constexpr std::byte guard{0xa5};
size_t num_checked = 0;

bool is_float(DType dtype) {
  return static_cast<int>(dtype) <= static_cast<int>(DType::bfloat16) || reduces_in_one_step(dtype);
}

// Bytes at a chosen misalignment with a guard on either side.
class GuardedBuffer {
 public:
  GuardedBuffer(const Bytes& content, size_t misalignment)
      : begin_(guard_bytes + misalignment), size_(content.size()), bytes_(begin_, guard) {
    bytes_.insert(bytes_.end(), content.begin(), content.end());
    bytes_.insert(bytes_.end(), guard_bytes, guard);
  }
  std::byte* data() { return bytes_.data() + begin_; }
  bool holds(const Bytes& expected) const {
    return std::equal(expected.begin(), expected.end(), bytes_.data() + begin_);
  }
  bool guards_intact() const {
    const auto is_guard = [](std::byte byte) { return byte == guard; };
    const std::byte* end = bytes_.data() + begin_ + size_;
    return std::all_of(bytes_.data(), bytes_.data() + begin_, is_guard) &&
           std::all_of(end, bytes_.data() + bytes_.size(), is_guard);
  }

 private:
  size_t begin_, size_;
  Bytes bytes_;
};

// A fifth of the elements are random bits (of a float: NaN, infinite, subnormal, huge); the others
// are small numbers, where rounding differs rather than everything overflowing. Half the bools are
// false.
Bytes random_elements(DType dtype, size_t count, std::mt19937_64& random) {
  Bytes content(count * size_of(dtype));
  oracle::with_codec(dtype, [&]<class Codec>() {
    using Number = typename Codec::Number;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bits = random();
      std::memcpy(content.data() + i * size_of(dtype), &bits, size_of(dtype));
      if (std::is_same_v<Number, bool> && bits >> 63) content[i] = std::byte{0};
      if (std::is_floating_point_v<Number> && bits % 5 != 0) {
        const double number = std::uniform_real_distribution<double>(-4, 4)(random);
        Codec::encode(content.data(), i, static_cast<Number>(number));
      }
    }
  });
  return content;
}

struct Case {
  DType dtype;
  ReduceOp op;
  size_t num_srcs;
  size_t count;
  // Which source the destination is; num_srcs: none.
  size_t aliased;
};

// `table` null: through the public function.
void check_case(const Case& c, const ReduceTable* table, const std::vector<Bytes>& srcs,
                const Bytes& expected) {
  std::vector<GuardedBuffer> buffers;
  std::vector<const std::byte*> pointers;
  // Five shares no factor with the two to four runs of a case, so every table sees both.
  const bool aligned = num_checked % 5 == 0;
  for (size_t s = 0; s < c.num_srcs; ++s) {
    buffers.emplace_back(srcs[s], aligned ? 0 : 1 + s * 5 % 11);
  }
  buffers.emplace_back(Bytes(expected.size(), std::byte{0x77}), aligned ? 0 : 3);
  for (size_t s = 0; s < c.num_srcs; ++s) pointers.push_back(buffers[s].data());

  std::byte* dst = buffers[c.aliased].data();
  const auto run = [&](ReduceOp op, size_t from) {
    std::vector<const std::byte*> rest;
    for (const std::byte* source : pointers) rest.push_back(source + from * size_of(c.dtype));
    std::byte* to = dst + from * size_of(c.dtype);
    return from + (table == nullptr ? reduce(c.dtype, op, to, rest, c.count - from)
                                    : reduce_with(*table, c.dtype, op, to, rest, c.count - from));
  };
  const size_t num_reduced = run(c.op, 0);
  CHECK(num_reduced == oracle::num_in_range(c.dtype, c.op, srcs, expected), "%zu of %zu elements",
        num_reduced, c.count);
  // From where an average stops, every element is still as it was.
  if (num_reduced < c.count) run(ReduceOp::sum, num_reduced);

  for (size_t b = 0; b < buffers.size(); ++b) {
    const bool right =
        b == c.aliased ? buffers[b].holds(expected) : b == c.num_srcs || buffers[b].holds(srcs[b]);
    CHECK(right && buffers[b].guards_intact(),
          "dtype %d op %d sources %zu count %zu dst %zu buffer %zu on %s",
          static_cast<int>(c.dtype), static_cast<int>(c.op), c.num_srcs, c.count, c.aliased, b,
          table == nullptr ? "default" : table->name);
  }
  ++num_checked;
}

void check_reduce_any_pair_equals_oracle(DType dtype, ReduceOp op) {
  std::mt19937_64 random(static_cast<size_t>(dtype) * num_reduce_ops + static_cast<size_t>(op));
  for (size_t num_srcs : {1, 2, 3, 4, 5, 8, 17}) {
    for (size_t count : {0, 1, 2, 7, 31, 64, 65, 1000}) {
      std::vector<Bytes> srcs;
      for (size_t s = 0; s < num_srcs; ++s) srcs.push_back(random_elements(dtype, count, random));
      const Bytes expected = oracle::reduced(dtype, op, srcs);
      for (size_t aliased = 0; aliased <= num_srcs; ++aliased) {
        // Of many sources the first, one in the middle, the last, and none.
        if (aliased > 0 && aliased + 1 < num_srcs && aliased != num_srcs / 2) continue;
        const Case c{dtype, op, num_srcs, count, aliased};
        check_case(c, nullptr, srcs, expected);
        for (const ReduceTable* table : usable_reduce_tables()) {
          check_case(c, table, srcs, expected);
        }
      }
    }
  }
}

void check_scale_any_dtype_equals_oracle(DType dtype) {
  std::mt19937_64 random(static_cast<size_t>(dtype));
  for (const ReduceTable* table : usable_reduce_tables()) {
    for (double divisor :
         {0.5, 0.75, 1.0, 2.0, 3.0, 7.0, 16.0, 255.0, 300.0, 1000003.0, 2147483647.0}) {
      if (divisor < 1 && !is_float(dtype)) continue;
      for (size_t count : {0, 1, 7, 65, 1000}) {
        const Bytes data = random_elements(dtype, count, random);
        const Bytes expected = oracle::scaled(dtype, data, divisor);
        GuardedBuffer by_table(data, 1), by_default(data, 0);
        table->scale[static_cast<size_t>(dtype)](by_table.data(), by_table.data(), count, divisor);
        scale(dtype, by_default.data(), count, divisor);
        CHECK(by_table.holds(expected) && by_table.guards_intact() && by_default.holds(expected) &&
                  by_default.guards_intact(),
              "scale dtype %d count %zu by %g on %s", static_cast<int>(dtype), count, divisor,
              table->name);
        ++num_checked;
      }
    }
  }
}

// Reduces a handful of equal elements, so that the wide path and the tail both see the values.
void check_values(DType dtype, ReduceOp op, std::initializer_list<uint64_t> values,
                  uint64_t expected) {
  const size_t count = 77, size = size_of(dtype);
  std::vector<Bytes> srcs;
  std::vector<const std::byte*> pointers;
  for (uint64_t value : values) {
    Bytes& src = srcs.emplace_back(count * size);
    for (size_t i = 0; i < count; ++i) std::memcpy(src.data() + i * size, &value, size);
  }
  for (const Bytes& src : srcs) pointers.push_back(src.data());
  for (const ReduceTable* table : usable_reduce_tables()) {
    Bytes dst(count * size);
    (void)reduce_with(*table, dtype, op, dst.data(), pointers, count);
    for (size_t i = 0; i < count; ++i) {
      uint64_t got = 0;
      std::memcpy(&got, dst.data() + i * size, size);
      CHECK(got == expected, "dtype %d op %d element %zu: 0x%llx, not 0x%llx, on %s",
            static_cast<int>(dtype), static_cast<int>(op), i, static_cast<unsigned long long>(got),
            static_cast<unsigned long long>(expected), table->name);
    }
    ++num_checked;
  }
}

// The expected bits stand here as literals, so this also holds the oracle to them.
HCCL_TEST(float16_edges_round_once_to_nearest_even) {
  constexpr auto dtype = DType::float16;
  constexpr auto sum = ReduceOp::sum, product = ReduceOp::product;
  check_values(dtype, sum, {0x3c00, 0x1000}, 0x3c00);          // 1 + 2^-11: a tie, stays even
  check_values(dtype, sum, {0x3c01, 0x1000}, 0x3c02);          // a tie, goes up to even
  check_values(dtype, sum, {0x7bff, 0x4bff}, 0x7bff);          // 65519.99: the largest finite
  check_values(dtype, sum, {0x7bff, 0x4c00}, 0x7c00);          // 65520: infinity
  check_values(dtype, sum, {0x7bff, 0x7bff, 0xfbff}, 0x7bff);  // no overflow on the way
  check_values(dtype, sum, {0x6800, 0x3c00, 0x3c00}, 0x6801);  // 2048 + 1 + 1: not rounded twice
  check_values(dtype, sum, {0x7c00, 0xfc00}, 0x7e00);          // infinity - infinity
  check_values(dtype, sum, {0xfd01, 0x3c00}, 0x7e00);          // a signalling NaN
  check_values(dtype, product, {0x0001, 0x3800}, 0x0000);      // half the smallest: a tie
  check_values(dtype, product, {0x8001, 0x3e00}, 0x8002);      // 1.5 of the smallest: a tie
  check_values(dtype, product, {0x0400, 0x3bff}, 0x0400);      // a subnormal rounds to a normal
}

// So ranks that reduce the same two operands in different orders have the same bits.
HCCL_TEST(reductions_of_two_commute) {
  std::mt19937_64 random(1);
  for (int d = 0; d < num_dtypes; ++d) {
    const auto dtype = static_cast<DType>(d);
    const size_t count = 4099;
    Bytes one = random_elements(dtype, count, random),
          other = random_elements(dtype, count, random);
    for (size_t i = 0; i < count; i += 3) {  // zeros of both signs
      std::memset(one.data() + i * size_of(dtype), 0, size_of(dtype));
      std::memset(other.data() + i * size_of(dtype), 0, size_of(dtype));
      Bytes& negative = i % 2 ? one : other;
      if (is_float(dtype)) negative[(i + 1) * size_of(dtype) - 1] = std::byte{0x80};
    }
    for (int o = 0; o < num_reduce_ops; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      for (const ReduceTable* table : usable_reduce_tables()) {
        if (table->reduce[d][o] == nullptr) continue;
        const std::byte* srcs[] = {one.data(), other.data(), one.data()};
        Bytes forth(one.size()), back(one.size());
        (void)reduce_with(*table, dtype, op, forth.data(), std::span(srcs, 2), count);
        (void)reduce_with(*table, dtype, op, back.data(), std::span(srcs + 1, 2), count);
        CHECK(forth == back, "dtype %d op %d on %s", d, o, table->name);
        ++num_checked;
      }
    }
  }
}

HCCL_TEST(bfloat16_edges_round_once_to_nearest_even) {
  constexpr auto dtype = DType::bfloat16;
  constexpr auto sum = ReduceOp::sum;
  check_values(dtype, sum, {0x3f80, 0x3b80}, 0x3f80);          // 1 + 2^-8: a tie, stays even
  check_values(dtype, sum, {0x3f81, 0x3b80}, 0x3f82);          // a tie, goes up to even
  check_values(dtype, sum, {0x7f7f, 0x7b00}, 0x7f80);          // largest + half a step: infinity
  check_values(dtype, sum, {0x7f7f, 0x7aff}, 0x7f7f);          // a little less: finite
  check_values(dtype, sum, {0x4380, 0x3f80, 0x3f80}, 0x4381);  // 256 + 1 + 1: not rounded twice
  check_values(dtype, sum, {0x0001, 0x0001}, 0x0002);          // subnormals are not flushed
  for (uint64_t nan : {0x7fffu, 0xffffu, 0x7f81u, 0xff81u}) {
    for (ReduceOp op : {sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      check_values(dtype, op, {nan, 0x3f80}, 0x7fc0);
      check_values(dtype, op, {0x3f80, nan, 0x3f80}, 0x7fc0);
    }
  }
}

HCCL_TEST(float_nan_propagates_and_integer_overflow_wraps) {
  for (ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::sum, ReduceOp::product}) {
    check_values(DType::float32, op, {0x3f800000, 0xffc12345, 0xbf800000}, 0x7fc00000);
    check_values(DType::float32, op, {0x7f812345, 0xffc12345}, 0x7fc00000);
    check_values(DType::float64, op, {0x3ff0000000000000, 0xfff8000000000001}, 0x7ff8000000000000);
  }
  check_values(DType::int8, ReduceOp::sum, {127, 1}, 0x80);
  check_values(DType::uint16, ReduceOp::product, {0xffff, 0xffff}, 1);
  check_values(DType::int64, ReduceOp::avg, {0x7fffffffffffffff, 1}, 0x8000000000000000);
  check_values(DType::int32, ReduceOp::min, {0xffffffff, 1}, 0xffffffff);
  check_values(DType::uint32, ReduceOp::min, {0xffffffff, 1}, 1);
  check_values(DType::boolean, ReduceOp::bxor, {2, 0x80, 1}, 1);
}

void check_multiply_any_float_equals_oracle(DType dtype) {
  std::mt19937_64 random(static_cast<size_t>(dtype));
  for (size_t count : {0, 1, 7, 77, 1003}) {
    const Bytes data = random_elements(dtype, count, random);
    const Bytes expected = oracle::multiplied(dtype, data, 0.3);
    for (const ReduceTable* table : usable_reduce_tables()) {
      CHECK((table->multiply[static_cast<size_t>(dtype)] != nullptr) == is_float(dtype), "dtype %d",
            static_cast<int>(dtype));
      if (!is_float(dtype)) continue;
      GuardedBuffer from(data, 1), to(Bytes(data.size()), 3);
      const auto kernel = table->multiply[static_cast<size_t>(dtype)];
      kernel(to.data(), from.data(), count, 0.3);
      kernel(from.data(), from.data(), count, 0.3);
      CHECK(to.holds(expected) && from.holds(expected), "dtype %d count %zu on %s",
            static_cast<int>(dtype), count, table->name);
      ++num_checked;
    }
  }
}

// x + -0 is x: sends every bit pattern through both conversions.
void check_16_bit_floats_every_pattern_survives(DType dtype, uint16_t infinity, uint16_t nan) {
  Bytes patterns(65536 * 2), zeros(65536 * 2), dst(65536 * 2);
  for (size_t i = 0; i < 65536; ++i) {
    oracle::put<uint16_t>(patterns.data(), i, static_cast<uint16_t>(i));
    oracle::put<uint16_t>(zeros.data(), i, 0x8000);
  }
  const std::byte* srcs[] = {patterns.data(), zeros.data()};
  for (const ReduceTable* table : usable_reduce_tables()) {
    (void)reduce_with(*table, dtype, ReduceOp::sum, dst.data(), srcs, 65536);
    for (size_t i = 0; i < 65536; ++i) {
      const size_t expected = (i & 0x7fff) > infinity ? nan : i;
      const size_t got = oracle::get<uint16_t>(dst.data(), i);
      CHECK(got == expected, "dtype %d 0x%zx became 0x%zx on %s", static_cast<int>(dtype), i, got,
            table->name);
    }
    ++num_checked;
  }
}

HCCL_TEST(reduce_supported_follows_the_contract) {
  for (int d = 0; d < num_dtypes; ++d) {
    for (int o = 0; o < num_reduce_ops; ++o) {
      const DType dtype{static_cast<uint8_t>(d)};
      const ReduceOp op{static_cast<uint8_t>(o)};
      const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
      const bool exact = op == ReduceOp::exact_sum || op == ReduceOp::exact_avg;
      const bool expected =
          !(is_float(dtype) ? bitwise : exact) && !(dtype == DType::boolean && op == ReduceOp::avg);
      CHECK(reduce_supported(dtype, op) == expected, "dtype %d op %d", d, o);
      for (const ReduceTable* table : usable_reduce_tables()) {
        CHECK((table->reduce[d][o] != nullptr) == expected, "dtype %d op %d %s", d, o, table->name);
      }
    }
  }
  CHECK(std::string_view(reduce_instruction_set()) == usable_reduce_tables()[0]->name, "%s",
        reduce_instruction_set());
}

HCCL_TEST(kernels_of_every_type_and_operation_equal_the_oracle) {
  check_16_bit_floats_every_pattern_survives(DType::float16, 0x7c00, 0x7e00);
  check_16_bit_floats_every_pattern_survives(DType::bfloat16, 0x7f80, 0x7fc0);
  for (int d = 0; d < num_dtypes; ++d) {
    const DType dtype{static_cast<uint8_t>(d)};
    check_multiply_any_float_equals_oracle(dtype);
    const bool divides = dtype != DType::boolean && !reduces_in_one_step(dtype);
    if (divides) check_scale_any_dtype_equals_oracle(dtype);
    for (int o = 0; o < num_reduce_ops; ++o) {
      const ReduceOp op{static_cast<uint8_t>(o)};
      if (reduce_supported(dtype, op)) check_reduce_any_pair_equals_oracle(dtype, op);
    }
  }
  std::printf("%zu reductions checked on:", num_checked);
  for (const ReduceTable* table : usable_reduce_tables()) std::printf(" %s", table->name);
  std::printf("\n");
}

}  // namespace
}  // namespace hccl
