// The accesses of the product, named by their place in the source.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "run.h"

namespace hccl::check {

namespace {

std::string line_of(const std::string& path, int number) {
  std::string line;
  char buffer[512];
  if (FILE* file = std::fopen(path.c_str(), "r")) {
    while (number-- > 0 && std::fgets(buffer, sizeof buffer, file)) {
      if (number == 0) line = buffer;
    }
    std::fclose(file);
  }
  size_t first = line.find_first_not_of(" \t"), last = line.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : line.substr(first, last - first + 1);
}

}  // namespace

int site_at(void* caller, int order, bool loads, bool stores) {
  Outside outside;
  uintptr_t at = reinterpret_cast<uintptr_t>(caller) - 1;
  auto [found, is_new] = run.site_of.try_emplace(at, static_cast<int>(run.sites.size()));
  if (is_new) run.sites.push_back({at, order, loads, stores});
  run.sites[static_cast<size_t>(found->second)].is_used = true;
  return found->second;
}

// Each site is named by the innermost of its inlined frames that lies in the product.
void name_sites() {
  Outside outside;
  std::vector<uintptr_t> unnamed;
  for (const auto& site : run.sites) {
    if (run.names.contains(site.at)) continue;
    unnamed.push_back(site.at);
  }
  if (unnamed.empty()) return;
  // -a prints each address before its frames.
  char executable[4096]{};
  if (readlink("/proc/self/exe", executable, sizeof executable - 1) < 0) return;
  std::string command = "addr2line -a -i -e " + std::string(executable);
  for (uintptr_t at : unnamed) {
    char text[32];
    std::snprintf(text, sizeof text, " 0x%zx", at);
    command += text;
  }
  FILE* frames = ::popen(command.c_str(), "r");
  char buffer[1024];
  uintptr_t at = 0;
  while (frames && std::fgets(buffer, sizeof buffer, frames)) {
    std::string frame = buffer;
    if (frame.starts_with("0x")) {
      at = std::stoull(frame, nullptr, 16);
      continue;
    }
    size_t colon = frame.rfind(':');
    if (colon == std::string::npos || run.names.contains(at)) continue;
    if (frame.find("csrc/") == std::string::npos) continue;
    std::string path = frame.substr(0, colon);
    std::string text = line_of(path, std::atoi(frame.c_str() + colon + 1));
    std::string& name = run.names[at] = path.substr(path.rfind('/') + 1) + ": " + text;
    run.is_product[name] = path.find("tests/") == std::string::npos;
  }
  if (frames) ::pclose(frames);
  for (uintptr_t one : unnamed) run.names.try_emplace(one, "?");
}

std::vector<Site> sites() {
  name_sites();
  std::map<std::string, Site> found;
  for (const auto& seen : run.sites) {
    Site& site = found.try_emplace(run.names[seen.at], Site{}).first->second;
    site.order = std::max(site.order, seen.order);
    site.loads |= seen.loads;
    site.stores |= seen.stores;
  }
  std::vector<Site> all;
  for (auto& [name, site] : found) {
    site.name = name;
    site.is_product = run.is_product[name];
    all.push_back(site);
  }
  return all;
}

void weaken(const std::string& name, int order) {
  name_sites();
  for (auto& site : run.sites) site.weakened = run.names[site.at] == name ? order : -1;
}

const char* name_of_order(int order) {
  constexpr const char* names[] = {"relaxed", "consume", "acquire",
                                   "release", "acq_rel", "seq_cst"};
  return names[order];
}

}  // namespace hccl::check
