#pragma once

#include "node.h"

namespace hccl::check {

std::vector<Case> rendezvous_cases(int depth);

}  // namespace hccl::check
