#include "progress/idle.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

namespace hccl {

namespace {

// The quota of the cgroup (v2, then v1) in whole cores, at least 1; 0 if there is none.
int quota_cores() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) {
    return std::max(1, static_cast<int>(std::stod(quota) / period));
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double value = 0;
  if (v1_quota >> value && v1_period >> period && value > 0 && period > 0) {
    return std::max(1, static_cast<int>(value / period));
  }
  return 0;
}

// sched_attr of sched_setattr(2): C libraries before glibc 2.41 lack it.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;  // nanoseconds
};

// The shortest that Linux takes. A thread that computes loses its core at timer ticks all the same.
constexpr uint64_t slice_ns = 100'000;

}  // namespace

void shorten_slice() {
  thread_local bool is_done = false;
  if (std::exchange(is_done, true)) return;
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  // An older kernel returns 0. The user may have chosen another policy.
  if (attributes.policy != SCHED_OTHER || attributes.runtime <= slice_ns) return;
  attributes.runtime = slice_ns;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

long count_preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

bool was_preempted() {
  thread_local long before = count_preemptions();
  long now = count_preemptions();
  return std::exchange(before, now) != now;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  int quota = quota_cores();
  return quota ? std::min(cores, quota) : cores;
}

}  // namespace hccl
