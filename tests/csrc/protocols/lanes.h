#pragma once

#include "node.h"

namespace hccl::check {

// `depth`: 1 in each run of the tests, more at night.
std::vector<Case> lane_cases(int depth);

}  // namespace hccl::check
