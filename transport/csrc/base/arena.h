// Registered memory: what the peers of this process on the node may read, and write replies to,
// during a collective.
//
// A process has one arena: a large sparse memfd without a name, sealed against changes of its size.
// Peers map the whole of it when they connect, so a piece of registered memory needs no exchange of
// its own: it travels as an offset. Only what is allocated takes up memory.
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

// The mapping of an arena, our own or a peer's.
class ArenaWindow {
 public:
  // Maps all of `memory` at a multiple of 2 MiB. Throws std::system_error.
  ArenaWindow(int memory, size_t num_bytes);
  ~ArenaWindow();
  ArenaWindow(const ArenaWindow&) = delete;
  ArenaWindow& operator=(const ArenaWindow&) = delete;

  // Our address of [offset, offset + num_bytes) of the arena; nullptr unless it lies inside.
  std::byte* at(uint64_t offset, uint64_t num_bytes) const;
  // The other way round; none unless all of it lies inside.
  std::optional<uint64_t> offset_of(const std::byte* address, size_t num_bytes) const;

 private:
  std::byte* base_;
  const size_t num_bytes_;
};

// Hears of memory that goes back to the system, before it does: whoever told a device of it has to
// undo that.
class ArenaObserver {
 public:
  virtual ~ArenaObserver() = default;
  // From any thread; must not call the arena.
  virtual void released(const std::byte* allocated) = 0;
};

// All methods may be called from any thread.
class Arena {
 public:
  // `num_bytes` is what can be allocated at most. 0, or a mapping that the system refuses, makes an
  // arena without memory: unavailable() says why, and peers see that it is empty. Throws
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

  // Memory that is there at once, in huge pages where the system has them; from 2 MiB on at a
  // multiple of 2 MiB. Its content is zero. Throws std::bad_alloc.
  std::byte* allocate(size_t num_bytes);
  // Hands the memory back to the system. Does nothing in a forked child: it is its parent's.
  void release(std::byte* allocated);
  // A peer may still write to it, since a collective failed: it is never allocated again. `offset`:
  // anywhere in it.
  void retire(uint64_t offset);
  bool is_retired(const std::byte* allocated) const;

  // Puts allocated memory in the place of the pages from `address` on; their content moves along.
  // Until withdraw() that is a second name of it. `address` is a multiple of the page size.
  // Throws std::system_error.
  void show_at(std::byte* address, std::byte* allocated, size_t num_bytes);
  // Forgets that name; the pages stay mapped, for their owner to unmap.
  void withdraw(std::byte* address);

  // Where memory lies in the arena, under any of its names; none if it is not registered.
  std::optional<uint64_t> offset_of(const std::byte* address, size_t num_bytes) const;
  size_t num_allocated() const;

  // The allocation in which memory lies, under any of its names, and its own address there.
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

  mutable std::mutex mutex_;         // guards what follows
  std::map<uint64_t, size_t> free_;  // offset and length; neighbours are merged
  std::map<uint64_t, Allocation> allocated_;
  std::map<const std::byte*, Alias> aliases_;
  std::map<FileId, std::weak_ptr<ArenaWindow>> peers_;
  std::vector<std::weak_ptr<ArenaObserver>> observers_;

  // aliases_.size(), read without the mutex: whoever asks about an alias got its address from the
  // thread that made it, which orders this too.
  std::atomic<size_t> num_aliases_{0};
};

}  // namespace hccl
