// Explores the protocols of shared memory, then each of them with one access weakened, and prints
// how many executions that took:
//   check_protocols              half a minute; HCCL_CHECK_DEPTH=2: more messages, at night
//   check_protocols --trace NAME ORDER    how the weaker access fails
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cases.h"
#include "redundant.h"

namespace hccl::check {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t most_executions = 1'000'000;  // of one program; only deep ones have more

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// Returns false if one has a fault.
bool explore_all(std::vector<Case>& cases) {
  uint64_t total = 0;
  for (Case& one : cases) {
    Clock::time_point began = Clock::now();
    Outcome outcome = explore(one.program, {.executions = most_executions});
    total += outcome.executions;
    one.sites = outcome.sites;
    std::printf("%10lu executions %6.2f s  %s\n", static_cast<unsigned long>(outcome.executions),
                seconds_since(began), one.name.c_str());
    if (outcome.fault.empty() && !outcome.complete) std::printf("%43s\n", "and more");
    std::fflush(stdout);
    if (outcome.fault.empty()) continue;
    std::printf("%s\n%s", outcome.fault.c_str(), outcome.trace.c_str());
    return false;
  }
  std::printf("%10lu executions in all\n\n", static_cast<unsigned long>(total));
  return true;
}

std::vector<int> weaker_than(const Site& site) {
  std::vector<int> weaker;
  if (!site.is_product || site.order == relaxed) return weaker;
  weaker.push_back(relaxed);
  if (site.order != seq_cst) return weaker;
  if (site.loads) weaker.push_back(acquire);
  if (site.stores) weaker.push_back(release);
  if (site.loads == site.stores) weaker.push_back(acq_rel);
  return weaker;
}

// The first case that fails with this access; null: none.
const Case* killer_of(const std::vector<Case>& cases, const std::string& name, int order,
                      Outcome& outcome) {
  weaken(name, order);
  const Case* killer = nullptr;
  for (const Case& one : cases) {
    if (!one.sites.contains(name)) continue;
    outcome = explore(one.program);
    if (!outcome.fault.empty()) killer = &one;
    if (killer != nullptr) break;
  }
  weaken("", 0);
  return killer;
}

const char* reason_for(const std::string& name, int order) {
  for (const Redundant& one : redundant) {
    if (name == one.site && order >= one.order) return one.reason;
  }
  return nullptr;
}

// Weakens each access in turn. Returns how many survive against the table, or fail against it.
int weaken_each(const std::vector<Case>& cases) {
  int num_wrong = 0, num_weaker = 0;
  std::string last;
  std::vector<Site> all = sites();
  for (const Site& site : all) {
    for (int order : weaker_than(site)) {
      Outcome outcome;
      const Case* killer = killer_of(cases, site.name, order, outcome);
      const char* reason = reason_for(site.name, order);
      bool is_wrong = (killer == nullptr) != (reason != nullptr);
      num_wrong += is_wrong;
      if (last != site.name) std::printf("%s\n", site.name.c_str());
      last = site.name;
      ++num_weaker;
      std::printf("  %s%s: ", is_wrong ? "WRONG " : "", name_of_order(order));
      if (killer != nullptr) {
        std::printf("%s (%s)\n", outcome.fault.c_str(), killer->name.c_str());
      } else {
        std::printf("redundant: %s\n", reason != nullptr ? reason : "not in the table");
      }
      std::fflush(stdout);
    }
  }
  std::printf("%d weaker accesses, %d of them not as redundant.h says\n", num_weaker, num_wrong);
  return num_wrong;
}

int trace(const std::vector<Case>& cases, const std::string& part, const char* order_name) {
  for (const Site& site : sites()) {
    if (site.name.find(part) == std::string::npos) continue;
    for (int order : weaker_than(site)) {
      if (std::strcmp(name_of_order(order), order_name) != 0) continue;
      Outcome outcome;
      const Case* killer = killer_of(cases, site.name, order, outcome);
      std::printf("%s -> %s: %s\n%s\n%s", site.name.c_str(), order_name,
                  killer ? killer->name.c_str() : "nothing fails", outcome.fault.c_str(),
                  outcome.trace.c_str());
    }
  }
  return 0;
}

}  // namespace

}  // namespace hccl::check

int main(int argc, char** argv) {
  using namespace hccl::check;
  const char* setting = std::getenv("HCCL_CHECK_DEPTH");
  if (!passes_litmus_tests() || !finds_published_faults()) return 1;
  make_segments();
  int depth = setting != nullptr ? std::atoi(setting) : 1;
  std::vector<Case> cases;
  for (auto* made : {lane_cases, board_cases, rendezvous_cases, submission_cases, window_cases}) {
    for (Case& one : made(depth)) cases.push_back(std::move(one));
  }
  if (!explore_all(cases)) return 1;
  if (argc == 4 && std::strcmp(argv[1], "--trace") == 0) return trace(cases, argv[2], argv[3]);
  return depth == 1 && weaken_each(cases) > 0 ? 1 : 0;
}
