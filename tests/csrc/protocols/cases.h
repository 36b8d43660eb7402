// The programs that the checker runs. `depth`: 1 in each run of the tests, more at night.
#pragma once

#include "node.h"

namespace hccl::check {

inline constexpr size_t tiny_post = 8;

std::vector<Case> board_cases(int depth);
std::vector<Case> lane_cases(int depth);
std::vector<Case> rendezvous_cases(int depth);
std::vector<Case> submission_cases(int depth);
std::vector<Case> window_cases(int depth);

// Whether the checker itself finds what C++20 allows, no more, and with and without its reduction.
// Prints the programs for which it does not.
bool passes_litmus_tests();

// Whether the checker finds faults that other libraries of this field published, rebuilt in small,
// and finds none once they are mended. Prints what it finds.
bool finds_published_faults();

}  // namespace hccl::check
