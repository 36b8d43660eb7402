// Windows: memory that other ranks write without a call of its owner, and signals between ranks.
//
// A rank writes directly into a peer whose memory and counters it maps: Window::put and signal, on
// the calling thread. To all other peers it sends messages, which point_to_point.cc carries in
// their order; the peer's driver applies them to the same memory and counters.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/memory/arena.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

// How often one rank has signalled another. In the memory of the rank that waits.
struct alignas(64) SignalCounter {
  // Increased after the writes that the signal follows; pairs with the load in take_signal(). Its
  // order with SegmentHeader::sleepers is that of RingEntry::sequence.
  std::atomic<uint64_t> sent;
};

// A rank has two counters for each peer. The user's signals and those of a closing window do not
// mix.
enum class Signal : uint8_t { user = 0, closing = 1 };

class Windows;

// Any thread may call the methods, but add_peer(), which comes before the first use.
class Window {
 public:
  // Peers map `memory` if it lies in `arena`. It lives until withdraw().
  Window(std::shared_ptr<Arena> arena, int rank, int world_size, std::span<std::byte> memory);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // In the arena; none: peers cannot map it.
  std::optional<uint64_t> memory_offset() const {
    return offset_of(memory_.data(), memory_.size());
  }
  std::optional<uint64_t> signals_offset() const;
  std::span<std::byte> memory() const { return memory_; }

  // This rank maps the memory of `rank`, of `num_bytes`, at `memory_at`, and its counters. False:
  // they do not lie inside.
  bool add_peer(int rank, std::shared_ptr<ArenaWindow> arena, std::shared_ptr<Doorbell> bell,
                uint64_t num_bytes, uint64_t memory_at, uint64_t signals_at);
  bool maps(int rank) const { return peers_[index(rank)].is_mapped; }
  // Of a mapped peer.
  std::span<std::byte> memory_of(int rank) const { return peers_[index(rank)].memory; }
  std::shared_ptr<ArenaWindow> mapping_of(int rank) const { return peers_[index(rank)].arena; }

  // These return false, without effect, if the peer is not mapped or the window has ended; put()
  // also if the range does not lie in the peer's memory.
  bool put(int peer, uint64_t offset, const std::byte* from, size_t num_bytes) const;
  bool signal(int peer, Signal which) const;
  // Takes one signal of the peer. False: there is none.
  bool take_signal(int peer, Signal which);

  // Ends it on this rank: nothing is written into its memory by messages any more. `agreed`: no
  // peer writes directly either; otherwise its registered memory is never allocated again.
  void withdraw(bool agreed);

  // ---- for Windows
  // A message has arrived. write() returns where it puts its payload; nullptr: out of range.
  std::byte* place(uint64_t offset, size_t num_bytes) const;
  void count_signal(int peer, Signal which) { count(peer, which).fetch_add(1); }

 private:
  friend class Windows;
  struct Peer {
    bool is_mapped = false;
    std::span<std::byte> memory;
    SignalCounter* signals = nullptr;
    std::shared_ptr<ArenaWindow> arena;
    std::shared_ptr<Doorbell> bell;  // nullptr: this rank itself
  };

  static size_t index(int rank) { return static_cast<size_t>(rank); }
  size_t place_of(int rank, Signal which) const {
    return static_cast<size_t>(which) * peers_.size() + index(rank);
  }
  std::atomic<uint64_t>& count(int peer, Signal which) const {
    return signals_[place_of(peer, which)].sent;
  }
  std::optional<uint64_t> offset_of(const std::byte* address, size_t num_bytes) const;
  bool is_open() const;

  const std::shared_ptr<Arena> arena_;
  const int rank_;
  const pid_t owner_;
  const std::span<std::byte> memory_;
  std::vector<Peer> peers_;
  std::vector<SignalCounter> own_signals_;  // of a rank without registered memory
  SignalCounter* signals_ = nullptr;        // two for each rank, by Signal
  bool is_registered_ = false;              // the counters
  std::vector<std::atomic<uint64_t>> taken_;
  std::shared_ptr<Windows> windows_;  // while messages find it there
  uint64_t id_ = 0;
  std::atomic<bool> withdrawn_{false};
};

// The open windows of a communicator.
class Windows {
 public:
  // Messages with this id find it. `is_passive`: peers send them, so this rank has to receive
  // without a call.
  static void open(const std::shared_ptr<Windows>& windows, Window& window, uint64_t id,
                   bool is_passive);
  // Does nothing if it is not open.
  void close(uint64_t id);
  // The communicator has failed or is closed, or belongs to the parent process: no window is usable
  // any more.
  void end() {
    is_open_.store(false, std::memory_order_release);
    num_passive_.store(0, std::memory_order_relaxed);
  }
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  // Whether messages may come for which no call waits. Pairs with nothing: open() kicks the
  // progress thread after it.
  bool are_passive() const { return num_passive_.load(std::memory_order_relaxed) > 0; }

  // Calls `use` with the window, or with nullptr if it is closed, which waits for this.
  template <typename Use>
  auto find(uint64_t id, Use use) {
    std::lock_guard lock(mutex_);
    auto found = windows_.find(id);
    return use(found == windows_.end() ? nullptr : found->second.window);
  }

 private:
  struct Open {
    Window* window;  // its end closes it first
    bool is_passive;
  };

  std::mutex mutex_;
  std::unordered_map<uint64_t, Open> windows_;
  std::atomic<bool> is_open_{true};
  std::atomic<int> num_passive_{0};
};

}  // namespace hccl
