// The lane under a software queue pair, with what it needs beyond a Lane to sleep on it.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/descriptor.h"
#include "lanes/lane.h"
#include "lanes/segment.h"

namespace hccl {

// Its flag is up while a thread sleeps on it: what the peer sends wakes that thread.
class UnderlyingLane : public SleepFlag {
 public:
  virtual Lane& lane() = 0;
  // Bytes that one message can take.
  virtual size_t slot_bytes() const = 0;
  // Readable when something came, writable when the lane can send.
  virtual std::vector<int> descriptors() const = 0;
  virtual void watch(Sleep& sleep);
  // Called with the lock of the queue pair held.
  void raise(Sleeper sleeper) override;
  // Thread-safe.
  void lower(Sleeper sleeper) override;
  // Whether a thread that waits for completions sleeps on it: the progress thread leaves it alone.
  bool has_caller() const { return num_callers_.load(std::memory_order_relaxed) > 0; }
  // Whether the peer's process has ended. What it sent before is still to be received.
  virtual bool peer_has_ended() { return false; }
  // To be called every 100 ms or so, with the lock of the queue pair held.
  virtual void tend() {}
  // Our registered memory, if the peer maps it, and the peer's; else nullptr.
  virtual const Arena* arena() const { return nullptr; }
  virtual const ArenaWindow* peer_arena() const { return nullptr; }

 private:
  std::atomic<int> num_callers_{0};
};

// Any lane with descriptors of its own, such as one that a Python provider implements.
class PlainUnderlyingLane final : public UnderlyingLane {
 public:
  PlainUnderlyingLane(std::shared_ptr<Lane> lane, size_t slot_bytes)
      : lane_(std::move(lane)), slot_bytes_(slot_bytes) {}
  Lane& lane() override { return *lane_; }
  size_t slot_bytes() const override { return slot_bytes_; }
  std::vector<int> descriptors() const override { return lane_->descriptors(); }

 private:
  const std::shared_ptr<Lane> lane_;
  const size_t slot_bytes_;
};

// One end in shared memory, before and after the peer's segment is known.
class ShmEndpoint {
 public:
  // `arena`: what it lends to the peer.
  explicit ShmEndpoint(std::shared_ptr<Arena> arena);
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }

  // What the peer passed.
  struct Theirs {
    Descriptor segment;
    Descriptor doorbell;
    Descriptor arena;
  };
  // `rank`: 0 on one side and 1 on the other. `control`: a socket that the end of the peer's process
  // closes, or an empty Descriptor. To be called once.
  std::shared_ptr<UnderlyingLane> connect(int rank, Theirs theirs, Descriptor control);

 private:
  const std::shared_ptr<Arena> arena_;
  const std::shared_ptr<Segment> segment_;
  const Descriptor doorbell_;
};

// Over a TCP or Unix stream socket: connected, authenticated and non-blocking.
std::shared_ptr<UnderlyingLane> tcp_underlying_lane(Descriptor socket);

// Both ends inside this process, without a socket.
std::array<std::shared_ptr<UnderlyingLane>, 2> loopback_underlying_lanes();

}  // namespace hccl
