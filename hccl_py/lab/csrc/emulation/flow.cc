#include "emulation/flow.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace hccl {

namespace {

// Connections share a wire in turns of this length; the reader wakes as often.
constexpr double turn_s = 0.0005;
constexpr size_t most_segments = 45;  // 64 KiB, as a socket hands them to a NIC
constexpr size_t fewest_segments = 2;
constexpr size_t most_queued_bytes = 4 << 20;

}  // namespace

Flow::Flow(int source, int sink, std::vector<EmulatedWire*> wires, Clock::duration latency)
    : source_(source), sink_(sink), wires_(std::move(wires)), latency_(latency) {
  double rate =
      (*std::min_element(wires_.begin(), wires_.end(), [](EmulatedWire* one, EmulatedWire* other) {
        return one->bytes_per_s() < other->bytes_per_s();
      }))->bytes_per_s();
  auto segments = static_cast<size_t>(rate * turn_s / segment_bytes);
  // Whole segments, so that the headers of the trains are those of a continuous stream.
  train_bytes_ = std::clamp(segments, fewest_segments, most_segments) * segment_bytes;
  // A receiver that does not read stops its sender, as the window of a real connection would.
  double in_flight = rate * std::chrono::duration<double>(latency_).count();
  most_buffered_ = 2 * static_cast<size_t>(in_flight) + most_queued_bytes;
}

Flow::Clock::time_point Flow::reads_at() const {
  if (!readable_ || read_all_ || num_buffered_ >= most_buffered_) return Clock::time_point::max();
  Clock::time_point at{};
  for (const EmulatedWire* wire : wires_) at = std::max(at, wire->takes_at());
  return at;
}

bool Flow::read(Clock::time_point now) {
  Clock::time_point at = reads_at();
  if (at > now) {
    if (at != Clock::time_point::max()) there_ = now;
    return false;
  }
  std::vector<std::byte> bytes(train_bytes_);
  ssize_t got = recv(source_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && errno == EINTR) return false;
    readable_ = false;
    there_.reset();
    if (got < 0 && errno == EAGAIN) return false;
    end(now, got < 0);
    return true;
  }
  bytes.resize(static_cast<size_t>(got));
  Clock::time_point left = now;
  size_t with_headers = bytes_with_headers(bytes.size());
  // Bytes that should have left before now arrive now.
  for (EmulatedWire* wire : wires_)
    left = std::max(left, wire->take(there_.value_or(now), with_headers));
  num_buffered_ += bytes.size();
  trains_.push_back({std::move(bytes), left + latency_});
  return true;
}

void Flow::end(Clock::time_point now, bool breaks) {
  read_all_ = true;
  Clock::time_point due = now + latency_;
  if (!trains_.empty()) due = std::max(due, trains_.back().due);
  trains_.push_back({{}, due, breaks});
}

Flow::Clock::time_point Flow::due() const {
  return trains_.empty() || !writable_ ? Clock::time_point::max() : trains_.front().due;
}

bool Flow::deliver(Clock::time_point now) {
  bool moved = false;
  while (due() <= now) {
    Train& train = trains_.front();
    if (train.bytes.empty()) {
      ended_ = true;
      broken_ |= train.breaks;
      if (!broken_) shutdown(sink_, SHUT_WR);
      trains_.pop_front();
      return true;
    }
    ssize_t sent = send(sink_, train.bytes.data() + offset_, train.bytes.size() - offset_,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) {
        // A receiver that has closed its socket resets its sender, too.
        trains_.clear();
        ended_ = read_all_ = broken_ = true;
        return true;
      }
      writable_ = false;
      return moved;
    }
    moved = true;
    num_buffered_ -= static_cast<size_t>(sent);
    offset_ += static_cast<size_t>(sent);
    if (offset_ < train.bytes.size()) continue;
    offset_ = 0;
    trains_.pop_front();
  }
  return moved;
}

}  // namespace hccl
