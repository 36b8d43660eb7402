// A connection that misbehaves as networks, middleboxes and bugs do, by seed: wraps any other one.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/stream.h"

namespace hccl {

// What befalls the frames that leave: a probability for each.
struct Faults {
  double delay = 0;      // it waits, and all behind it, for a random time up to `longest_delay_s`
  double drop = 0;       // it vanishes
  double duplicate = 0;  // it goes out twice
  double truncate = 0;   // a part of it goes out, then the connection ends
  double reset = 0;      // the connection is reset
  double corrupt = 0;    // one of its bits is wrong
  double longest_delay_s = 0.005;
  double bytes_per_second = 0;  // 0: as fast as it goes
};

class FaultyStream final : public Stream {
 public:
  FaultyStream(std::shared_ptr<Stream> inner, uint64_t seed, const Faults& faults);

  int fd() const override { return inner_->fd(); }
  size_t send(std::span<const iovec> parts) override;
  size_t receive(std::span<const iovec> parts) override;
  void close() override;
  // What is held back goes out when somebody calls.
  bool announces() const override { return false; }

  uint64_t num_faults() const { return num_faults_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { none, close, reset };
  struct Leaving {
    std::vector<std::byte> bytes;
    Clock::time_point at;
    End end;
  };

  bool happens(double probability);
  size_t frame_size() const;
  void finish_frame();
  void pump();
  void end(End how);

  const std::shared_ptr<Stream> inner_;
  const Faults faults_;
  std::mt19937_64 random_;
  uint64_t num_faults_ = 0;
  std::vector<std::byte> frame_;  // the beginning of the frame that is being handed over
  std::deque<Leaving> leaving_;
  size_t num_leaving_ = 0;  // bytes
  size_t offset_ = 0;       // of the first in `leaving_`: bytes that left
  Clock::time_point busy_until_{};
  bool ended_ = false;
};

}  // namespace hccl
