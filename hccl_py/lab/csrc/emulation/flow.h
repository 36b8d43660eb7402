// The bytes of one connection in one direction, in flight through an emulated network.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "emulation/wire.h"

namespace hccl {

class Flow {
 public:
  using Clock = EmulatedWire::Clock;

  // Moves bytes from `source` to `sink`, non-blocking sockets, over wires that outlive the flow.
  Flow(int source, int sink, std::vector<EmulatedWire*> wires, Clock::duration latency);

  // Reads what the source has and the wires take, at most one train of packets. Returns whether
  // there was anything.
  bool read(Clock::time_point now);
  // Sends the bytes that are due. Returns whether any left.
  bool deliver(Clock::time_point now);

  // The time until which the wires take no more; Clock::time_point::max(): until an event.
  Clock::time_point reads_at() const;
  // When the next bytes arrive; Clock::time_point::max(): there are none, or the sink has no room.
  Clock::time_point due() const;

  void note_readable() { readable_ = true; }
  void note_writable() { writable_ = true; }
  // The source closed its side, and this was passed on to the sink.
  bool has_ended() const { return ended_; }
  // The connection broke; both ends must be reset.
  bool is_broken() const { return broken_; }

 private:
  // Bytes that were read at once. They arrive together, when the last one does.
  struct Train {
    std::vector<std::byte> bytes;
    Clock::time_point due;
    bool breaks = false;  // without bytes: whether the connection broke or the source closed it
  };

  void end(Clock::time_point now, bool breaks);

  const int source_;
  const int sink_;
  const std::vector<EmulatedWire*> wires_;
  const Clock::duration latency_;
  size_t train_bytes_;
  bool readable_ = true;
  bool writable_ = true;
  std::optional<Clock::time_point> there_;  // since when bytes wait for the wires
  bool read_all_ = false;
  bool ended_ = false;
  bool broken_ = false;
  std::deque<Train> trains_;
  size_t offset_ = 0;  // bytes of the first that have left
  size_t num_buffered_ = 0;
  size_t most_buffered_;
};

}  // namespace hccl
