// The lane under a software queue pair, with what it needs beyond a Lane to sleep on it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "lanes/lane.h"
#include "lanes/segment.h"

namespace hccl {

// A sleep on it keeps it alive, and with it the descriptors that the sleeper watches.
class UnderlyingLane : public SleepFlag {
 public:
  virtual Lane& lane() = 0;
  // Bytes that one message can take.
  virtual size_t slot_bytes() const = 0;
  // Readable when something came, writable when the lane can send.
  virtual std::vector<int> descriptors() const = 0;
  virtual void watch(Sleep& sleep);
  // Called with the lock of the queue pair held.
  void raise(Sleeper) override {}
  // Thread-safe.
  void lower(Sleeper) override {}
  // Whether the peer's process has ended. What it sent before is still to be received.
  virtual bool peer_has_ended() { return false; }
  // To be called every 100 ms or so, with the lock of the queue pair held.
  virtual void tend() {}
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

// One end in shared memory, before the peer's segment is known.
class ShmEndpoint {
 public:
  // `arena`: what it lends to the peer, or nullptr.
  explicit ShmEndpoint(std::shared_ptr<Arena> arena);
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }

  // What the peer passed; empty Descriptors where it has none.
  struct Theirs {
    Descriptor segment;
    Descriptor doorbell;
    Descriptor arena{-1};
    Descriptor control{-1};  // a socket that the end of the peer's process closes
  };
  // `rank`: 0 on one side and 1 on the other. To be called once.
  std::shared_ptr<UnderlyingLane> connect(int rank, Theirs theirs);

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
