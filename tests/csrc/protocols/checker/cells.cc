// Plain memory and its races, and the locations of atomics.
#include <cstring>
#include <sstream>

#include "run.h"

namespace hccl::check {

namespace {

Cell& cell_at(Region& region, size_t index) {
  Cell& cell = region.cells[index];
  if (cell.execution != run.execution) {
    cell = {};
    cell.execution = run.execution;
  }
  return cell;
}

void note_dirty(Region& region, Cell& cell, size_t index) {
  if (!region.is_lasting) return;
  bool is_first = cell.writer == -1;
  if (is_first) region.dirty.push_back(static_cast<uint32_t>(index));
  if (is_first) cell.writer = -2;
}

bool is_before(int thread, uint32_t time, const Clock& clock) { return time <= clock[thread]; }

void race(const char* what, int other, uintptr_t address) {
  Outside outside;
  fail(std::string("a data race: thread ") + std::to_string(run.current) + what +
       std::to_string(other) + " at " + describe(address));
}

void check_against(const Clock& theirs, const char* what, uintptr_t address) {
  const Clock& mine = run.memory.view(run.current).clock;
  for (int other = 0; other < max_threads; ++other) {
    if (other != run.current && !is_before(other, theirs[other], mine)) {
      return race(what, other, address);
    }
  }
}

uint64_t raw_load(uintptr_t address, int num_bytes) {
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<void*>(address), static_cast<size_t>(num_bytes));
  return value;
}

int make_location(uintptr_t address, int num_bytes) {
  Outside outside;
  if (run.num_locations == run.locations.size()) run.locations.emplace_back();
  Location& location = run.locations[run.num_locations];
  location.address = address;
  location.num_bytes = num_bytes;
  location.stores.clear();
  for (auto& seen : location.seen) seen.clear();
  uint64_t value = num_bytes ? raw_load(address, num_bytes) : run.events[address].count;
  location.stores.push_back({value, {}, 0, 0});
  return static_cast<int>(run.num_locations++);
}

}  // namespace

Region* region_of(uintptr_t address) {
  for (Region& region : run.regions) {
    if (address >= region.begin && address < region.end) return &region;
  }
  return nullptr;
}

std::string describe(uintptr_t address) {
  std::ostringstream text;
  for (size_t i = 0; i < run.regions.size(); ++i) {
    const Region& region = run.regions[i];
    if (address >= region.begin && address < region.end) {
      text << "shared memory " << i << " + " << (address - region.begin);
      return text.str();
    }
  }
  text << "address " << address;
  return text.str();
}

void note_access(uintptr_t address, size_t num_bytes, bool writes, bool by_kernel) {
  if (!in_execution || num_bytes == 0) return;
  Region* region = region_of(address);
  if (region == nullptr) return;
  size_t first = (address - region->begin) / region->cell_bytes;
  size_t last = (address + num_bytes - 1 - region->begin) / region->cell_bytes;
  for (size_t i = first; i <= last && i < region->cells.size(); ++i) {
    Cell& cell = cell_at(*region, i);
    if (writes) note_dirty(*region, cell, i);
    if (run.current < 0) continue;
    uintptr_t at = region->begin + i * region->cell_bytes;
    const Clock& mine = run.memory.view(run.current).clock;
    bool same_bytes = by_kernel && cell.by_kernel;  // both copy one payload; see joint_copy.h
    if (cell.writer >= 0 && cell.writer != run.current &&
        !is_before(cell.writer, cell.written, mine) && !(writes && same_bytes)) {
      race(writes ? " writes what is written by thread " : " reads what is written by thread ",
           cell.writer, at);
    }
    check_against(cell.atomic_writes, " touches what is stored by thread ", at);
    if (writes) {
      check_against(cell.reads, " writes what is read by thread ", at);
      check_against(cell.atomic_reads, " writes what is loaded by thread ", at);
      if (cell.location >= 0) {
        Outside outside;
        fail("a plain write to an atomic at " + describe(at));
      }
      cell.writer = static_cast<int8_t>(run.current);
      cell.written = mine[run.current];
      cell.by_kernel = by_kernel;
    } else {
      cell.reads[run.current] = mine[run.current];
    }
  }
}

void note_atomic(uintptr_t address, int num_bytes, bool loads, bool stores) {
  Region* region = region_of(address);
  size_t first = (address - region->begin) / region->cell_bytes;
  size_t last = (address + static_cast<size_t>(num_bytes) - 1 - region->begin) / region->cell_bytes;
  const Clock& mine = run.memory.view(run.current).clock;
  for (size_t i = first; i <= last; ++i) {
    Cell& cell = cell_at(*region, i);
    uintptr_t at = region->begin + i * region->cell_bytes;
    if (cell.writer >= 0 && cell.writer != run.current &&
        !is_before(cell.writer, cell.written, mine)) {
      race(" uses as an atomic what is written by thread ", cell.writer, at);
    }
    if (stores) {
      check_against(cell.reads, " stores to what is read by thread ", at);
      if (cell.writer < 0) note_dirty(*region, cell, i);
      cell.atomic_writes[run.current] = mine[run.current];
    }
    if (loads) cell.atomic_reads[run.current] = mine[run.current];
  }
}

void raw_store(uintptr_t address, int num_bytes, uint64_t value) {
  std::memcpy(reinterpret_cast<void*>(address), &value, static_cast<size_t>(num_bytes));
}

size_t location_of(uintptr_t address, int num_bytes) {
  if (address < run.events.size()) {  // the address of an event is its number
    Event& event = run.events[address];
    if (event.location < 0) event.location = make_location(address, 0);
    return static_cast<size_t>(event.location);
  }
  Region* region = region_of(address);
  Cell& cell = cell_at(*region, (address - region->begin) / region->cell_bytes);
  if (cell.location < 0) cell.location = make_location(address, num_bytes);
  if (location_at(static_cast<size_t>(cell.location)).num_bytes != num_bytes) {
    fail("accesses of two sizes at " + describe(address));
  }
  return static_cast<size_t>(cell.location);
}

void share(const void* address, size_t num_bytes, size_t cell_bytes) {
  bool is_lasting = !in_execution;
  Outside outside;
  auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin % cell_bytes != 0) std::abort();
  Region region{begin, begin + num_bytes, cell_bytes, is_lasting, {}, {}};
  region.cells.resize((num_bytes + cell_bytes - 1) / cell_bytes);
  run.regions.push_back(std::move(region));
}

}  // namespace hccl::check
