#pragma once

#include "node.h"

namespace hccl::check {

inline constexpr size_t tiny_post = 8;

std::vector<Case> board_cases(int depth);

}  // namespace hccl::check
