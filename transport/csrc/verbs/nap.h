// A sleep over the carriers of several queue pairs.
#pragma once

#include <poll.h>

#include <memory>
#include <vector>

#include "verbs/carrier.h"
#include "verbs/verbs.h"

namespace hccl {

// Collects what to watch, then announces the sleep to the peers; ends it when destroyed.
class Nap {
 public:
  enum class Sleeper { user, device };

  explicit Nap(Sleeper sleeper) : sleeper_(sleeper) {}
  Nap(const Nap&) = delete;
  Nap& operator=(const Nap&) = delete;
  ~Nap();

  void watch(int descriptor) { descriptors_.push_back({descriptor, POLLIN, 0}); }
  // With the lock of its queue pair held. `until`: when it has to be driven again, at the latest.
  void watch(const std::shared_ptr<Carrier>& carrier, VerbsClock::time_point until);
  // From here on peers wake us; afterwards look once more at what was watched.
  void announce();
  void sleep(VerbsClock::time_point until);

 private:
  const Sleeper sleeper_;
  bool announced_ = false;
  VerbsClock::time_point until_ = VerbsClock::time_point::max();
  std::vector<std::shared_ptr<Carrier>> carriers_;  // kept alive: their descriptors are in use
  std::vector<pollfd> descriptors_;
};

}  // namespace hccl
