// Internal to reduce.cc: one table of kernels per instruction set, and the ones that this processor
// can run. Only reduce.cc, the reduce_<instruction set>.cc files and their test include this.
//
// Every table gives the same bits. That holds because a kernel adds (or multiplies) strictly from
// left to right per element, no expression both multiplies and adds (so there is nothing to
// contract into a fused operation), and a NaN result is always the one canonical quiet NaN: which
// payload survives in NaN + NaN depends on how a compiler orders the operands.
#pragma once

// reduce_kernels.h is compiled once per instruction set and must include nothing itself: inline
// functions of the standard library would be compiled for that instruction set, and the linker
// might keep that copy for all. So its includes are here.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/types.h"
#include "reduce/exact_sum.h"
#include "reduce/reduce.h"

namespace hccl {

// Reduces num_srcs >= 2 sources into dst and returns how many elements it reduced, as reduce()
// does; pointers need no alignment.
using ReduceKernel = size_t (*)(std::byte* dst, const std::byte* const* srcs, size_t num_srcs,
                                size_t count);
// Combines every element with one operand; `to` may be `from`. Integers have integers > 0 as
// divisors.
using OperandKernel = void (*)(std::byte* to, const std::byte* from, size_t count, double operand);

// Of num_srcs >= 1 sources, as reduce_exactly() does.
using ExactKernel = void (*)(std::byte* dst, const std::byte* const* srcs, size_t num_srcs,
                             size_t count, size_t divisor);
// As split_sum() does.
using SplitKernel = bool (*)(std::byte* sum, std::byte* addend, size_t count);

// Encodes and decodes float32 elements; `residual` may be null.
using EncodeKernel = void (*)(std::byte* to, const std::byte* from, std::byte* residual,
                              size_t count);
using DecodeKernel = void (*)(std::byte* to, const std::byte* from, size_t count);

// A null entry is an undefined pair.
struct ReduceTable {
  const char* name = nullptr;
  ReduceKernel reduce[num_dtypes][num_reduce_ops] = {};
  ExactKernel exact[num_dtypes] = {};
  ExactKernel exact_of_floats[num_dtypes] = {};  // of float32, rounded to 16 bits
  SplitKernel split[num_dtypes] = {};
  OperandKernel scale[num_dtypes] = {};
  OperandKernel multiply[num_dtypes] = {};
  EncodeKernel encode[num_compressions] = {};
  DecodeKernel decode[num_compressions] = {};
};

extern const ReduceTable reduce_table_generic;
#if defined(__x86_64__)
extern const ReduceTable reduce_table_avx2;
extern const ReduceTable reduce_table_avx512;
#endif

// The tables that this processor can run, best first.
std::span<const ReduceTable* const> usable_reduce_tables();

// reduce() with a given table.
size_t reduce_with(const ReduceTable& table, DType dtype, ReduceOp op, std::byte* dst,
                   std::span<const std::byte* const> srcs, size_t count);

}  // namespace hccl
