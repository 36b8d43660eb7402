// Memory orders of the product that no program of the checker needs, and why they stay.
#pragma once

#include "checker/checker.h"

namespace hccl::check {

struct Redundant {
  const char* site;
  int order;  // the weakest that no program tells from the product's
  const char* reason;
};

inline const std::vector<Redundant> redundant = {};

}  // namespace hccl::check
