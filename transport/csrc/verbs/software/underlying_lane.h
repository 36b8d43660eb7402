// The lane under a software queue pair, with what it needs beyond a Lane to sleep on it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "base/memory/arena.h"
#include "lanes/lane.h"
#include "lanes/shared_memory/segment.h"
#include "lanes/tcp.h"

namespace hccl {

// A lane with its own descriptors, such as a Python provider's. A sleep on it
// keeps it alive, and with it the descriptors that the sleeper watches.
class UnderlyingLane : public SleepFlag {
 public:
  using MakeLane = std::function<std::shared_ptr<Lane>(Statistics&)>;

  UnderlyingLane(size_t slot_bytes, const MakeLane& make)
      : slot_bytes_(slot_bytes), lane_(make(statistics_)) {}
  Lane& lane() const { return *lane_; }
  // Bytes that one message can take.
  size_t slot_bytes() const { return slot_bytes_; }
  // Readable when something arrived, writable when the lane can send.
  virtual std::vector<int> descriptors() const { return lane_->descriptors(); }
  virtual void watch(Sleep& sleep);
  // Called with the lock of the queue pair held.
  void raise(Sleeper) override {}
  // Thread-safe.
  void lower(Sleeper) override {}
  // Whether the peer's process has ended. Its earlier messages are still to be received.
  virtual bool peer_has_ended() { return false; }
  // Called about every 100 ms, with the lock of the queue pair held.
  virtual void tend() {}

 private:
  Statistics statistics_;
  const size_t slot_bytes_;
  const std::shared_ptr<Lane> lane_;
};

// One end in shared memory, before the peer's segment is known.
class ShmEndpoint {
 public:
  // `arena`: what it lends to the peer, or nullptr.
  explicit ShmEndpoint(std::shared_ptr<Arena> arena);
  int segment_fd() const { return segment_->fd(); }
  int doorbell_fd() const { return doorbell_.get(); }

  // Descriptors that the peer passed; empty where it has none.
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

// Over a TCP or Unix stream socket: connected, authenticated and non-blocking. With an observer its
// connection is replaced when it breaks. `peer`: for the lane's reports.
std::shared_ptr<UnderlyingLane> tcp_underlying_lane(Descriptor socket, int peer = 0,
                                                    TcpOptions options = {});

// Both ends inside this process, without a socket.
std::array<std::shared_ptr<UnderlyingLane>, 2> loopback_underlying_lanes();

}  // namespace hccl
