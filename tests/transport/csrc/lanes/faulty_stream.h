// A connection that misbehaves as networks, middleboxes and bugs do, by seed: wraps any other one.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/stream.h"
#include "lanes/path.h"

namespace hccl::test {

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

// What it holds back goes out when somebody calls.
class FaultyStream final : public Stream {
 public:
  FaultyStream(std::shared_ptr<Stream> inner, uint64_t seed, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults), random_(seed) {}

  int fd() const override { return inner_->fd(); }
  uint64_t num_faults() const { return num_faults_; }

  size_t send(std::span<const iovec> parts) override {
    pump();
    if (num_leaving_ > most_held_bytes) return 0;
    size_t taken = 0;
    for (const iovec& part : parts) {
      auto* bytes = static_cast<const std::byte*>(part.iov_base);
      for (size_t offset = 0; offset < part.iov_len;) {
        size_t size = std::min(part.iov_len - offset, frame_size() - frame_.size());
        frame_.insert(frame_.end(), bytes + offset, bytes + offset + size);
        offset += size;
        if (frame_.size() == frame_size()) finish_frame();
      }
      taken += part.iov_len;
    }
    pump();
    return taken;
  }

  size_t receive(std::span<const iovec> parts) override {
    pump();
    return inner_->receive(parts);
  }

  void close() override {
    ended_ = true;
    inner_->close();
  }

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { none, close, reset };
  struct Leaving {
    std::vector<std::byte> bytes;
    Clock::time_point at;
    End end;
  };
  // Beyond, the sender has to wait.
  static constexpr size_t most_held_bytes = 1 << 20;
  static constexpr size_t bytes_per_send = 65536;

  bool happens(double probability) {
    bool it_does = probability > 0 && fraction(1) < probability;
    num_faults_ += it_does;
    return it_does;
  }
  double fraction(double limit) {
    return std::uniform_real_distribution<double>(0, limit)(random_);
  }
  static Clock::duration duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Bytes that the frame at hand will have, as far as that is known.
  size_t frame_size() const {
    Frame frame;
    if (frame_.size() < sizeof frame) return sizeof frame;
    std::memcpy(&frame, frame_.data(), sizeof frame);
    return sizeof frame + frame.header.length;
  }

  void finish_frame() {
    Leaving leaving{std::exchange(frame_, {}), Clock::now(), End::none};
    if (happens(faults_.drop)) return;
    if (happens(faults_.delay)) leaving.at += duration(fraction(faults_.longest_delay_s));
    if (happens(faults_.corrupt)) {
      size_t bit = random_() % (leaving.bytes.size() * 8);
      leaving.bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    }
    if (happens(faults_.duplicate)) hold(leaving);
    if (happens(faults_.truncate)) {
      leaving.bytes.resize(random_() % leaving.bytes.size());
      leaving.end = End::close;
    } else if (happens(faults_.reset)) {
      leaving.bytes.clear();
      leaving.end = End::reset;
    }
    hold(std::move(leaving));
  }

  void hold(Leaving leaving) {
    num_leaving_ += leaving.bytes.size();
    leaving_.push_back(std::move(leaving));
  }

  void pump() {
    if (ended_) throw StreamError("the connection was closed", StreamEnd::closed);
    Clock::time_point now = Clock::now();
    while (!leaving_.empty() && leaving_.front().at <= now && busy_until_ <= now) {
      Leaving& first = leaving_.front();
      if (offset_ < first.bytes.size()) {
        size_t size = std::min(bytes_per_send, first.bytes.size() - offset_);
        iovec rest{first.bytes.data() + offset_, size};
        size_t sent = inner_->send({&rest, 1});
        if (sent == 0) return;
        offset_ += sent;
        double rate = faults_.bytes_per_second;
        if (rate > 0) busy_until_ = now + duration(static_cast<double>(sent) / rate);
        continue;
      }
      if (first.end != End::none) end(first.end);
      num_leaving_ -= first.bytes.size();
      offset_ = 0;
      leaving_.pop_front();
    }
  }

  void end(End how) {
    linger at_once{1, 0};
    if (how == End::reset) {
      setsockopt(inner_->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    close();
    throw StreamError("the connection was closed", StreamEnd::closed);
  }

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

}  // namespace hccl::test
