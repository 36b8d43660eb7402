#pragma once

namespace hccl::check {

// Whether the checker finds faults that other libraries of this field published, rebuilt in small,
// and finds none once they are mended. Prints what it finds.
bool finds_published_faults();

}  // namespace hccl::check
