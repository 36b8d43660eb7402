// Registered memory: peers on the node may read it, and write replies to it, during a collective.
//
// A process has one arena: a large sparse memfd without a name, sealed against changes of its size.
// Peers map all of it when they connect, so a piece of registered memory is sent as an offset. Only
// allocated pieces take up memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"

namespace hccl {

// The mapping of an arena, this process's or a peer's.
class ArenaWindow {
 public:
  // Maps all of `memory` at a multiple of 2 MiB. Throws std::system_error.
  ArenaWindow(int memory, size_t num_bytes);
  ~ArenaWindow();
  ArenaWindow(const ArenaWindow&) = delete;
  ArenaWindow& operator=(const ArenaWindow&) = delete;

  // Our address of [offset, offset + num_bytes) of the arena; nullptr unless it lies inside.
  std::byte* at(uint64_t offset, uint64_t num_bytes) const;
  // The inverse; none unless all of it lies inside.
  std::optional<uint64_t> offset_of(const std::byte* address, size_t num_bytes) const;

 private:
  std::byte* base_;
  const size_t num_bytes_;
};

// Called before memory returns to the system: an owner that registered it with a device must
// deregister it.
class ArenaObserver {
 public:
  virtual ~ArenaObserver() = default;
  // From any thread; must not call the arena.
  virtual void released(const std::byte* allocated) = 0;
};

// All methods may be called from any thread.
class Arena {
 public:
  // `num_bytes` is the limit of allocations. 0, or a mapping that the system refuses, makes an
  // arena without memory: unavailable() says why, and peers see an empty one. Throws
  // std::system_error if there is no memfd at all.
  static std::shared_ptr<Arena> create(size_t num_bytes);

  int fd() const { return memory_.get(); }
  size_t num_bytes() const { return num_bytes_; }
  // Why nothing can be allocated; empty if it can.
  const std::string& unavailable() const { return unavailable_; }
  // nullptr for an arena without memory.
  const std::shared_ptr<ArenaWindow>& window() const { return window_; }

  // The arena of a peer (it may be a thread of ours), mapped once per process. nullptr for an arena
  // without memory. Throws std::invalid_argument if it is not sealed, std::system_error if it
  // cannot be mapped.
  std::shared_ptr<ArenaWindow> open_peer(Descriptor memory);

  // Committed memory, in huge pages if the system has them; from 2 MiB on at a multiple of 2 MiB.
  // Its content is zero. Throws std::bad_alloc.
  std::byte* allocate(size_t num_bytes);
  // Returns the memory to the system. Does nothing in a forked child: the parent owns it.
  void release(std::byte* allocated);
  // Never allocates it again, because a peer may still write to it after a failed collective.
  // `offset`: anywhere in it.
  void retire(uint64_t offset);
  bool is_retired(const std::byte* allocated) const;

  // Maps allocated memory over the pages from `address` on, with their content. Until withdraw()
  // that is a second address of it. `address` is a multiple of the page size. Throws
  // std::system_error.
  void show_at(std::byte* address, std::byte* allocated, size_t num_bytes);
  // Drops that address; the pages stay mapped, for their owner to unmap.
  void withdraw(std::byte* address);

  // The offset of memory in the arena, under any of its addresses; none if it is not registered.
  std::optional<uint64_t> offset_of(const std::byte* address, size_t num_bytes) const;
  size_t num_allocated() const;

  // The allocation of memory under any of its addresses, and its address there.
  struct Place {
    std::byte* allocated;
    size_t num_bytes;  // of the allocation
    std::byte* address;
  };
  std::optional<Place> place_of(const std::byte* address, size_t num_bytes) const;
  void observe(std::weak_ptr<ArenaObserver> observer);

 private:
  struct Allocation {
    size_t num_bytes;
    bool retired;
  };
  struct Alias {
    size_t num_bytes;
    uint64_t offset;
  };
  using FileId = std::pair<dev_t, ino_t>;

  Arena(Descriptor memory, size_t num_bytes);
  std::optional<uint64_t> take(size_t num_bytes, size_t alignment);
  void give_back(uint64_t offset, size_t num_bytes);

  const Descriptor memory_;
  const size_t num_bytes_;
  const pid_t owner_;
  std::string unavailable_;
  std::shared_ptr<ArenaWindow> window_;

  mutable std::mutex mutex_;         // guards the following members
  std::map<uint64_t, size_t> free_;  // offset and length; neighbours are merged
  std::map<uint64_t, Allocation> allocated_;
  std::map<const std::byte*, Alias> aliases_;
  std::map<FileId, std::weak_ptr<ArenaWindow>> peers_;
  std::vector<std::weak_ptr<ArenaObserver>> observers_;

  // aliases_.size(), read without the mutex: a caller with an alias got its address from the thread
  // that made it, which orders this too.
  std::atomic<size_t> num_aliases_{0};
};

}  // namespace hccl
