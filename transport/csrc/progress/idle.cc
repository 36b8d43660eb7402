#include "progress/idle.h"

#include <algorithm>
#include <fstream>
#include <string>

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

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  int quota = quota_cores();
  return quota ? std::min(cores, quota) : cores;
}

}  // namespace hccl
