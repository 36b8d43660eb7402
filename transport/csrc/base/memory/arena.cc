#include "base/memory/arena.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/memory/memory_file.h"

namespace hccl {

namespace {

constexpr size_t page = 4096;
constexpr size_t huge_page = size_t{2} << 20;

// Newer than the C libraries of our builds.
constexpr int advice_populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
constexpr int advice_collapse = 25;        // MADV_COLLAPSE, Linux 6.1

// Registered memory is used whole. Populating it now turns a lack of memory into an error here
// instead of a signal later.
bool make_resident(std::byte* begin, size_t num_bytes) {
  if (madvise(begin, num_bytes, advice_populate_write) != 0 && errno != EINVAL) return false;
  // Few systems give shared memory huge pages by default, on which collectives run up to a third
  // faster. Without them, small pages are used. Only populated pages can be collapsed, and are then
  // remapped.
  if (num_bytes >= huge_page && madvise(begin, num_bytes, advice_collapse) == 0) {
    madvise(begin, num_bytes, advice_populate_write);
  }
  return true;
}

}  // namespace

ArenaWindow::ArenaWindow(int memory, size_t num_bytes) : num_bytes_(num_bytes) {
  // Room for an aligned start; the excess on both sides is unmapped.
  size_t reserved = num_bytes + huge_page;
  void* room =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw_errno("address space for registered memory");
  auto begin = reinterpret_cast<uintptr_t>(room);
  size_t before = round_up(begin, huge_page) - begin;
  base_ = static_cast<std::byte*>(room) + before;
  void* mapped = mmap(base_, num_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory, 0);
  if (mapped == MAP_FAILED) {
    int error = errno;
    munmap(room, reserved);
    throw_errno("mapping registered memory", error);
  }
  if (before > 0) munmap(room, before);
  if (before < huge_page) munmap(base_ + num_bytes, huge_page - before);
  madvise(base_, num_bytes, MADV_HUGEPAGE);  // refused if shared memory has none
}

ArenaWindow::~ArenaWindow() { munmap(base_, num_bytes_); }

std::byte* ArenaWindow::at(uint64_t offset, uint64_t num_bytes) const {
  // Peers' numbers: their sum could wrap round.
  if (num_bytes > num_bytes_ || offset > num_bytes_ - num_bytes) return nullptr;
  return base_ + offset;
}

std::optional<uint64_t> ArenaWindow::offset_of(const std::byte* address, size_t num_bytes) const {
  auto begin = reinterpret_cast<uintptr_t>(base_), at = reinterpret_cast<uintptr_t>(address);
  if (at < begin || at - begin > num_bytes_ || num_bytes > num_bytes_ - (at - begin)) {
    return std::nullopt;
  }
  return at - begin;
}

std::shared_ptr<Arena> Arena::create(size_t num_bytes) {
  num_bytes = round_up(num_bytes, huge_page);
  try {
    std::shared_ptr<Arena> arena(new Arena(memory_file(num_bytes, "hccl-arena"), num_bytes));
    if (num_bytes == 0) {
      arena->unavailable_ = "it is turned off";
    } else {
      arena->window_ = std::make_shared<ArenaWindow>(arena->fd(), num_bytes);
    }
    return arena;
  } catch (const std::system_error& error) {
    if (num_bytes == 0) throw;
    std::shared_ptr<Arena> arena = create(0);
    arena->unavailable_ = std::to_string(num_bytes) + " bytes of address space: " + error.what();
    return arena;
  }
}

Arena::Arena(Descriptor memory, size_t num_bytes)
    : memory_(std::move(memory)), num_bytes_(num_bytes), owner_(getpid()) {
  if (num_bytes > 0) free_[0] = num_bytes;
}

std::shared_ptr<ArenaWindow> Arena::open_peer(Descriptor memory) {
  struct stat theirs, ours;
  if (fstat(memory.get(), &theirs) != 0 || fstat(memory_.get(), &ours) != 0 || !is_sealed(memory)) {
    throw std::invalid_argument("a peer's registered memory is not sealed");
  }
  if (theirs.st_size == 0) return nullptr;
  FileId id{theirs.st_dev, theirs.st_ino};
  if (id == FileId{ours.st_dev, ours.st_ino}) return window_;
  std::lock_guard lock(mutex_);
  std::erase_if(peers_, [](const auto& peer) { return peer.second.expired(); });
  if (auto known = peers_.find(id); known != peers_.end()) {
    if (auto window = known->second.lock()) return window;
  }
  auto window = std::make_shared<ArenaWindow>(memory.get(), static_cast<size_t>(theirs.st_size));
  peers_[id] = window;
  return window;
}

std::byte* Arena::allocate(size_t num_bytes) {
  size_t unit = num_bytes < huge_page ? page : huge_page;
  if (num_bytes > num_bytes_) throw std::bad_alloc();
  size_t rounded = round_up(std::max(num_bytes, size_t{1}), unit);
  std::optional<uint64_t> offset = take(rounded, unit);
  if (!offset) throw std::bad_alloc();
  std::byte* begin = window_->at(*offset, rounded);
  if (make_resident(begin, rounded)) return begin;
  release(begin);
  throw std::bad_alloc();
}

// First fit.
std::optional<uint64_t> Arena::take(size_t num_bytes, size_t alignment) {
  std::lock_guard lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    auto [begin, length] = *range;
    uint64_t offset = round_up(begin, alignment), end = begin + length;
    if (offset > end || end - offset < num_bytes) continue;
    free_.erase(range);
    if (offset > begin) free_[begin] = offset - begin;
    if (end > offset + num_bytes) free_[offset + num_bytes] = end - offset - num_bytes;
    allocated_[offset] = {num_bytes, false};
    return offset;
  }
  return std::nullopt;
}

void Arena::release(std::byte* allocated) {
  if (getpid() != owner_) return;  // before the mutex, which may be locked in a forked child
  std::optional<uint64_t> offset = window_->offset_of(allocated, 0);
  if (!offset) throw std::invalid_argument("not memory of this arena");
  Allocation allocation;
  std::vector<std::weak_ptr<ArenaObserver>> observers;
  {
    std::lock_guard lock(mutex_);
    auto found = allocated_.find(*offset);
    if (found == allocated_.end()) throw std::invalid_argument("not allocated in this arena");
    allocation = found->second;
    allocated_.erase(found);
    observers = observers_;
  }
  for (const auto& weak : observers) {
    if (auto observer = weak.lock()) observer->released(allocated);
  }
  // Before it can be allocated again.
  fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(*offset),
            static_cast<off_t>(allocation.num_bytes));
  if (!allocation.retired) give_back(*offset, allocation.num_bytes);
}

void Arena::give_back(uint64_t offset, size_t num_bytes) {
  std::lock_guard lock(mutex_);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + num_bytes) {
    num_bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += num_bytes;
      return;
    }
  }
  free_[offset] = num_bytes;
}

void Arena::retire(uint64_t offset) {
  std::lock_guard lock(mutex_);
  auto after = allocated_.upper_bound(offset);
  if (after == allocated_.begin()) return;
  auto& [begin, allocation] = *std::prev(after);
  if (offset - begin < allocation.num_bytes) allocation.retired = true;
}

bool Arena::is_retired(const std::byte* allocated) const {
  std::lock_guard lock(mutex_);
  auto found = allocated_.find(window_->offset_of(allocated, 0).value());
  return found != allocated_.end() && found->second.retired;
}

void Arena::show_at(std::byte* address, std::byte* allocated, size_t num_bytes) {
  std::optional<uint64_t> offset = window_->offset_of(allocated, num_bytes);
  if (!offset) throw std::invalid_argument("not memory of this arena");
  std::memcpy(allocated, address, num_bytes);
  void* mapped = mmap(address, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      memory_.get(), static_cast<off_t>(*offset));
  if (mapped == MAP_FAILED) throw_errno("mapping registered memory");
  std::lock_guard lock(mutex_);
  aliases_[address] = {num_bytes, *offset};
  num_aliases_.store(aliases_.size(), std::memory_order_relaxed);
}

void Arena::withdraw(std::byte* address) {
  if (getpid() != owner_) return;
  std::lock_guard lock(mutex_);
  aliases_.erase(address);
  num_aliases_.store(aliases_.size(), std::memory_order_relaxed);
}

std::optional<uint64_t> Arena::offset_of(const std::byte* address, size_t num_bytes) const {
  if (!window_) return std::nullopt;
  if (auto offset = window_->offset_of(address, num_bytes)) return offset;
  if (num_aliases_.load(std::memory_order_relaxed) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  auto after = aliases_.upper_bound(address);
  if (after == aliases_.begin()) return std::nullopt;
  const auto& [begin, alias] = *std::prev(after);
  size_t inside = static_cast<size_t>(address - begin);
  if (inside > alias.num_bytes || num_bytes > alias.num_bytes - inside) return std::nullopt;
  return alias.offset + inside;
}

std::optional<Arena::Place> Arena::place_of(const std::byte* address, size_t num_bytes) const {
  std::optional<uint64_t> offset = offset_of(address, num_bytes);
  if (!offset) return std::nullopt;
  std::lock_guard lock(mutex_);
  auto after = allocated_.upper_bound(*offset);
  if (after == allocated_.begin()) return std::nullopt;
  const auto& [begin, allocation] = *std::prev(after);
  size_t inside = *offset - begin;
  if (inside > allocation.num_bytes || num_bytes > allocation.num_bytes - inside) {
    return std::nullopt;
  }
  return Place{window_->at(begin, allocation.num_bytes), allocation.num_bytes,
               window_->at(*offset, num_bytes)};
}

void Arena::observe(std::weak_ptr<ArenaObserver> observer) {
  std::lock_guard lock(mutex_);
  std::erase_if(observers_, [](const auto& one) { return one.expired(); });
  observers_.push_back(std::move(observer));
}

size_t Arena::num_allocated() const {
  std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const auto& [offset, allocation] : allocated_) total += allocation.num_bytes;
  return total;
}

}  // namespace hccl
