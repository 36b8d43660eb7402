#include "base/faulty_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "lanes/frame.h"

namespace hccl {

namespace {

// What is held back before the sender has to wait.
constexpr size_t most_held_bytes = 1 << 20;
constexpr size_t bytes_per_send = 65536;

}  // namespace

FaultyStream::FaultyStream(std::shared_ptr<Stream> inner, uint64_t seed, const Faults& faults)
    : inner_(std::move(inner)), faults_(faults), random_(seed) {}

bool FaultyStream::happens(double probability) {
  if (probability <= 0) return false;
  bool it_does = std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  num_faults_ += it_does;
  return it_does;
}

// Bytes that the frame at hand will have, as far as that is known. What is no frame of a lane is
// taken as it was handed over.
size_t FaultyStream::frame_size() const {
  Frame frame;
  if (frame_.size() < sizeof frame) return sizeof frame;
  std::memcpy(&frame, frame_.data(), sizeof frame);
  return frame.magic == Frame{}.magic ? sizeof frame + frame.header.length : frame_.size();
}

size_t FaultyStream::send(std::span<const iovec> parts) {
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

void FaultyStream::finish_frame() {
  std::vector<std::byte> frame;
  frame.swap(frame_);
  Leaving leaving{std::move(frame), Clock::now(), End::none};
  if (happens(faults_.drop)) return;
  if (happens(faults_.delay)) {
    double delay_s = std::uniform_real_distribution<double>(0, faults_.longest_delay_s)(random_);
    leaving.at += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(delay_s));
  }
  if (happens(faults_.corrupt)) {
    size_t bit = random_() % (leaving.bytes.size() * 8);
    leaving.bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  if (happens(faults_.duplicate)) {
    num_leaving_ += leaving.bytes.size();
    leaving_.push_back(leaving);
  }
  if (happens(faults_.truncate)) {
    leaving.bytes.resize(random_() % leaving.bytes.size());
    leaving.end = End::close;
  } else if (happens(faults_.reset)) {
    leaving.bytes.clear();
    leaving.end = End::reset;
  }
  num_leaving_ += leaving.bytes.size();
  leaving_.push_back(std::move(leaving));
}

void FaultyStream::pump() {
  if (ended_) throw StreamError("the connection was closed", true);
  Clock::time_point now = Clock::now();
  while (!leaving_.empty() && leaving_.front().at <= now && busy_until_ <= now) {
    Leaving& first = leaving_.front();
    if (offset_ < first.bytes.size()) {
      size_t size = std::min(bytes_per_send, first.bytes.size() - offset_);
      iovec rest{first.bytes.data() + offset_, size};
      size_t sent = inner_->send({&rest, 1});
      if (sent == 0) return;
      offset_ += sent;
      if (faults_.bytes_per_second > 0) {
        std::chrono::duration<double> busy(static_cast<double>(sent) / faults_.bytes_per_second);
        busy_until_ = now + std::chrono::duration_cast<Clock::duration>(busy);
      }
      continue;
    }
    if (first.end != End::none) end(first.end);
    num_leaving_ -= first.bytes.size();
    offset_ = 0;
    leaving_.pop_front();
  }
}

void FaultyStream::end(End how) {
  linger at_once{1, 0};
  if (how == End::reset) {
    setsockopt(inner_->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  close();
  throw StreamError("the connection was closed", true);
}

size_t FaultyStream::receive(std::span<const iovec> parts) {
  pump();
  return inner_->receive(parts);
}

void FaultyStream::close() {
  ended_ = true;
  inner_->close();
}

}  // namespace hccl
