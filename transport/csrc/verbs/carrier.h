// What carries a queue pair's messages: a lane, and the descriptors that wake whoever waits for it.
// A new provider is a Lane; only one that needs more than descriptors to wake derives from Carrier.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/descriptor.h"
#include "lanes/lane.h"
#include "lanes/shm.h"

namespace hccl {

// Its flag is up while a thread sleeps on it; what the peer sends then wakes that thread.
class Carrier : public SleepFlag {
 public:
  virtual Lane& lane() = 0;
  // Bytes that one message can take.
  virtual size_t slot_bytes() const = 0;
  // Readable when something came, writable when the lane can send.
  virtual std::vector<int> descriptors() const = 0;
  virtual void watch(Sleep& sleep);
  // Thread-safe, as all of a SleepFlag.
  void raise(Sleeper sleeper) override;
  void lower(Sleeper sleeper) override;
  // Whether a thread sleeps on it that waits for completions: the progress thread leaves it alone.
  bool has_caller() const { return num_callers_.load(std::memory_order_relaxed) > 0; }
  // A look at whether the peer's process has let go. What it sent before is still to be received.
  virtual bool peer_is_gone() { return false; }
  // To be called every 100 ms or so, with the lock of the queue pair held.
  virtual void tend() {}
  // Our registered memory, if the peer can read it where it lies, and the peer's; else nullptr.
  virtual const Arena* arena() const { return nullptr; }
  virtual const ArenaWindow* peer_arena() const { return nullptr; }

 private:
  std::atomic<int> num_callers_{0};
};

// Any lane whose descriptors say all, such as one that a Python provider implements.
class LaneCarrier final : public Carrier {
 public:
  LaneCarrier(std::shared_ptr<Lane> lane, size_t slot_bytes, std::vector<int> descriptors);
  Lane& lane() override { return *lane_; }
  size_t slot_bytes() const override { return slot_bytes_; }
  std::vector<int> descriptors() const override { return descriptors_; }

 private:
  const std::shared_ptr<Lane> lane_;
  const size_t slot_bytes_;
  const std::vector<int> descriptors_;
};

// One end of a connection in shared memory, before and after the peer's segment is known.
class ShmEndpoint {
 public:
  // `arena`: what it lends to the peer.
  explicit ShmEndpoint(std::shared_ptr<Arena> arena);
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }
  int arena_fd() const { return arena_->fd(); }

  // What the peer passed.
  struct Theirs {
    Descriptor segment;
    Descriptor doorbell;
    Descriptor arena;
  };
  // `rank`: 0 on one side and 1 on the other. `control`: a socket that the peer's death closes, or
  // an empty Descriptor. To be called once.
  std::shared_ptr<Carrier> connect(int rank, Theirs theirs, Descriptor control);

 private:
  const std::shared_ptr<Arena> arena_;
  std::shared_ptr<Segment> segment_;
  Descriptor doorbell_;
};

// A TCP (or Unix stream) connection: connected, authenticated and non-blocking.
std::shared_ptr<Carrier> tcp_carrier(Descriptor socket);

// Both ends of a connection inside this process; no socket is involved.
std::array<std::shared_ptr<Carrier>, 2> loopback_carriers();

}  // namespace hccl
