#include "engine/window.h"

#include <unistd.h>

#include <cstring>
#include <new>

#include "base/copy.h"

namespace hccl {

namespace {

// From here on memcpy bypasses the caches, which copy() does not.
constexpr size_t large_bytes = 1 << 20;

}  // namespace

Window::Window(std::shared_ptr<Arena> arena, int rank, int world_size, std::span<std::byte> memory)
    : arena_(std::move(arena)),
      rank_(rank),
      owner_(getpid()),
      memory_(memory),
      peers_(index(world_size)),
      taken_(2 * index(world_size)) {
  size_t num_signals = taken_.size();
  if (arena_ && arena_->window()) {
    try {
      void* allocated = arena_->allocate(num_signals * sizeof(SignalCounter));
      signals_ = new (allocated) SignalCounter[num_signals];
      is_registered_ = true;
    } catch (const std::bad_alloc&) {
      // Peers then send messages.
    }
  }
  if (signals_ == nullptr) {
    own_signals_ = std::vector<SignalCounter>(num_signals);
    signals_ = own_signals_.data();
  }
  for (size_t i = 0; i < num_signals; ++i) signals_[i].sent.store(0, std::memory_order_relaxed);
  peers_[index(rank)] = {.is_mapped = true, .memory = memory, .signals = signals_};
}

Window::~Window() {
  withdraw(false);
  if (is_registered_) arena_->release(reinterpret_cast<std::byte*>(signals_));
}

std::optional<uint64_t> Window::offset_of(const std::byte* address, size_t num_bytes) const {
  if (num_bytes == 0) return 0;
  return arena_ && arena_->window() ? arena_->offset_of(address, num_bytes) : std::nullopt;
}

std::optional<uint64_t> Window::signals_offset() const {
  if (!is_registered_) return std::nullopt;
  return offset_of(reinterpret_cast<const std::byte*>(signals_),
                   taken_.size() * sizeof(SignalCounter));
}

bool Window::add_peer(int rank, std::shared_ptr<ArenaWindow> arena, std::shared_ptr<Doorbell> bell,
                      uint64_t num_bytes, uint64_t memory_at, uint64_t signals_at) {
  std::byte* memory = arena->at(memory_at, num_bytes);
  std::byte* signals = arena->at(signals_at, taken_.size() * sizeof(SignalCounter));
  if (memory == nullptr || signals == nullptr) return false;
  peers_[index(rank)] = {.is_mapped = true,
                         .memory = {memory, num_bytes},
                         .signals = reinterpret_cast<SignalCounter*>(signals),
                         .arena = std::move(arena),
                         .bell = std::move(bell)};
  return true;
}

bool Window::is_open() const {
  return !withdrawn_.load(std::memory_order_relaxed) && windows_ && windows_->is_open();
}

bool Window::put(int peer, uint64_t offset, const std::byte* from, size_t num_bytes) const {
  const Peer& to = peers_[index(peer)];
  size_t room = to.memory.size();
  if (!to.is_mapped || !is_open() || num_bytes > room || offset > room - num_bytes) return false;
  if (num_bytes == 0) return true;
  std::byte* address = to.memory.data() + offset;
  if (to.bell == nullptr) {
    std::memmove(address, from, num_bytes);  // this rank's own memory, of which `from` may be part
  } else if (num_bytes < large_bytes) {
    copy(address, from, num_bytes);
  } else {
    std::memcpy(address, from, num_bytes);
  }
  return true;
}

bool Window::signal(int peer, Signal which) const {
  const Peer& to = peers_[index(peer)];
  if (!to.is_mapped || !is_open()) return false;
  to.signals[place_of(rank_, which)].sent.fetch_add(1, std::memory_order_seq_cst);
  if (to.bell) to.bell->message_posted();
  return true;
}

bool Window::take_signal(int peer, Signal which) {
  if (!is_open()) return false;
  std::atomic<uint64_t>& taken = taken_[place_of(peer, which)];
  uint64_t before = taken.load(std::memory_order_relaxed);
  do {
    if (count(peer, which).load(std::memory_order_seq_cst) == before) return false;
  } while (!taken.compare_exchange_weak(before, before + 1, std::memory_order_relaxed));
  return true;
}

std::byte* Window::place(uint64_t offset, size_t num_bytes) const {
  bool fits = num_bytes <= memory_.size() && offset <= memory_.size() - num_bytes;
  return fits ? memory_.data() + offset : nullptr;
}

void Window::withdraw(bool agreed) {
  if (getpid() != owner_ || withdrawn_.exchange(true)) return;
  if (windows_) windows_->close(id_);
  if (agreed || !windows_ || !arena_ || !arena_->window()) return;
  if (auto offset = memory_.empty() ? std::nullopt : memory_offset()) arena_->retire(*offset);
  if (auto offset = signals_offset()) arena_->retire(*offset);
}

void Windows::open(const std::shared_ptr<Windows>& windows, Window& window, uint64_t id,
                   bool is_passive) {
  window.id_ = id;
  window.windows_ = windows;
  std::lock_guard lock(windows->mutex_);
  windows->windows_[id] = {&window, is_passive};
  if (is_passive && windows->is_open()) windows->num_passive_.fetch_add(1);
}

void Windows::close(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto found = windows_.find(id);
  if (found == windows_.end()) return;
  if (found->second.is_passive && is_open()) num_passive_.fetch_sub(1);
  windows_.erase(found);
}

}  // namespace hccl
