#pragma once

namespace hccl::check {

// Whether the checker itself finds what C++20 allows, no more, and with and without its reduction.
// Prints the programs for which it does not.
bool passes_litmus_tests();

}  // namespace hccl::check
