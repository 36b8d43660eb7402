// The bytes of one connection in one direction, on their way through an emulated network.
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

  // From `source` to `sink`, both non-blocking, through wires that outlive it.
  Flow(int source, int sink, std::vector<EmulatedWire*> wires, Clock::duration latency);

  // Reads what the source has and the wires take, one packet train at most. True if anything came.
  bool read(Clock::time_point now);
  // Passes on what is due. True if anything left.
  bool deliver(Clock::time_point now);

  // Until then, neither wires nor the sink's end take more; Clock::time_point::max(): until an
  // event.
  Clock::time_point reads_at() const;
  // When the next bytes arrive; Clock::time_point::max(): none, or the sink has no room.
  Clock::time_point due() const;

  void note_readable() { readable_ = true; }
  void note_writable() { writable_ = true; }
  // The source has said that nothing more comes, and the sink knows.
  bool has_ended() const { return ended_; }
  // The connection broke: both ends are to be reset.
  bool is_broken() const { return broken_; }

 private:
  // What was read at once. It arrives when its last byte does.
  struct Train {
    std::vector<std::byte> bytes;
    Clock::time_point due;
    bool breaks = false;  // no bytes: the source's end, or a reset
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
  size_t num_held_ = 0;
  size_t most_held_;
};

}  // namespace hccl
