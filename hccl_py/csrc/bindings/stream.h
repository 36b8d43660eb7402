// Connections as they cross into Python: a raw descriptor or a Stream.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "lanes/path.h"
#include "base/stream.h"

void bind_stream(nanobind::module_& module);
// Takes a descriptor over, or shares a Stream.
std::shared_ptr<hccl::Stream> stream_of(nanobind::handle connection);
std::vector<std::shared_ptr<hccl::Stream>> streams_of(const nanobind::list& connections);
// Throws what a signal handler raised on this thread while a Stream of Python's was at work. With the
// GIL held.
void rethrow_stream_interruption();
nanobind::list path_statistics(
    const std::vector<std::shared_ptr<hccl::PathStatistics>>& records);
