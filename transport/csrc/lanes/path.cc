#include "lanes/path.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "base/crc32c.h"

namespace hccl {

namespace {

// A frame and a small payload in one read; a large payload's read brings the next frame along.
constexpr size_t ahead_bytes = BufferPool::min_bytes;
constexpr auto shortest_measurement = std::chrono::milliseconds(2);
constexpr double weight_of_news = 0.25;

uint32_t sum_of(Frame frame) {
  frame.header_crc = 0;
  return crc32c(&frame, sizeof frame);
}

iovec part(const std::byte* begin, size_t size) { return {const_cast<std::byte*>(begin), size}; }

}  // namespace

PayloadBuffer BufferPool::take() {
  if (spare_.empty()) return new_buffer(num_bytes_);
  PayloadBuffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

Path::Path(size_t slot_bytes, bool checksum, BufferPool& pool,
           std::shared_ptr<PathStatistics> statistics)
    : slot_bytes_(slot_bytes),
      checksum_(checksum),
      pool_(pool),
      statistics_(std::move(statistics)) {}

void Path::adopt(std::shared_ptr<Stream> stream) {
  ++generation_;
  statistics_->connections.add(1);
  if (!ahead_) ahead_ = pool_.take();
  stream_ = std::move(stream);
  only_receives_ = false;
  int domain = AF_UNSPEC;
  socklen_t size = sizeof domain;
  getsockopt(stream_->fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
  is_tcp_ = domain != AF_UNIX;
  serial_sent_ = serial_received_ = 0;
  bytes_written_ = delivered_ = 0;
  was_busy_ = false;
  rate_ = 0;  // the old one may have been slow because it was breaking
  statistics_->rate.set(0);
  statistics_->connected.set(1);
}

void Path::cut(Down down) {
  if (stream_) stream_->close();
  stream_ = nullptr;
  down_ = std::move(down);
  half_way_ = false;
  ahead_begin_ = ahead_end_ = 0;
  has_frame_ = false;
  buffer_ = nullptr;
  statistics_->connected.set(0);
}

void Path::begin(Frame frame, const std::byte* payload) {
  frame.serial = serial_sent_++;
  if (checksum_) {
    frame.payload_crc = crc32c(payload, frame.header.length);
    frame.header_crc = sum_of(frame);
  }
  sending_ = frame;
  half_way_ = true;
  offset_ = 0;
}

bool Path::go_on(const std::byte* payload) {
  auto* frame = reinterpret_cast<const std::byte*>(&sending_);
  const size_t length = sending_.header.length;
  while (offset_ < sizeof sending_ + length) {
    const size_t of_frame = std::min(offset_, sizeof sending_);
    const size_t sent = offset_ - of_frame;
    const iovec parts[2] = {part(frame + of_frame, sizeof sending_ - of_frame),
                            part(payload + sent, length - sent)};
    // No empty part, which would cost a call of a Python stream.
    const iovec* first = of_frame < sizeof sending_ ? parts : parts + 1;
    size_t taken = stream_->send({first, length > 0 ? std::end(parts) : parts + 1});
    if (taken == 0) return false;
    offset_ += taken;
    bytes_written_ += taken;
  }
  half_way_ = false;
  return true;
}

bool Path::read_ahead() {
  if (ahead_begin_ > 0) {
    std::memmove(ahead_.get(), ahead_.get() + ahead_begin_, buffered());
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
  }
  iovec rest = part(ahead_.get() + ahead_end_, ahead_bytes - ahead_end_);
  size_t got = stream_->receive({&rest, 1});
  ahead_end_ += got;
  return got > 0;
}

const Frame* Path::head() {
  if (has_frame_) return &frame_;
  if (stream_ == nullptr) return nullptr;
  if (buffered() < sizeof frame_ && (!read_ahead() || buffered() < sizeof frame_)) return nullptr;
  std::memcpy(&frame_, ahead_.get() + ahead_begin_, sizeof frame_);
  if (checksum_ && frame_.header_crc != sum_of(frame_)) {
    statistics_->checksum_errors.add(1);
    throw StreamError("a frame came in damaged", StreamEnd::given_up);
  }
  if (frame_.magic != Frame{}.magic || frame_.kind < Frame::data || frame_.kind > Frame::probe) {
    throw StreamError("what came in is no frame", StreamEnd::given_up);
  }
  if (frame_.serial != serial_received_) {
    throw StreamError("frame " + std::to_string(frame_.serial) + " came in instead of frame " +
                          std::to_string(serial_received_),
                      StreamEnd::given_up);
  }
  if (frame_.header.length > (frame_.kind == Frame::data ? slot_bytes_ : 0)) {
    throw StreamError("a frame longer than a slot", StreamEnd::given_up);
  }
  ++serial_received_;
  ahead_begin_ += sizeof frame_;
  has_frame_ = true;
  checked_ = !checksum_;
  received_ = 0;
  return &frame_;
}

void Path::check_payload(const std::byte* payload) {
  if (checked_) return;
  if (crc32c(payload, frame_.header.length) != frame_.payload_crc) {
    statistics_->checksum_errors.add(1);
    throw StreamError("a payload came in damaged", StreamEnd::given_up);
  }
  checked_ = true;
}

// The next frame is read along with the end of this payload.
bool Path::fill(std::byte* destination) {
  const size_t length = frame_.header.length;
  size_t from_ahead = std::min(buffered(), length - received_);
  if (from_ahead) {
    hccl::copy(destination + received_, ahead_.get() + ahead_begin_, from_ahead);
    ahead_begin_ += from_ahead;
    received_ += from_ahead;
  }
  while (received_ < length) {
    iovec parts[2] = {part(destination + received_, length - received_),
                      part(ahead_.get(), ahead_bytes)};
    size_t got = stream_->receive(parts);
    if (got == 0) return false;
    size_t ours = std::min(got, length - received_);
    received_ += ours;
    ahead_begin_ = 0;
    ahead_end_ = got - ours;
  }
  check_payload(destination);
  return true;
}

bool Path::receive(std::byte* destination) {
  if (!buffer_) return fill(destination);
  if (!fill(buffer_.get())) return false;
  hccl::copy(destination, buffer_.get(), frame_.header.length);
  return true;
}

bool Path::assemble() {
  if (!buffer_) buffer_ = pool_.take();
  return fill(buffer_.get());
}

const std::byte* Path::lend() {
  // Already completely read ahead: lend it in place.
  if (received_ == 0 && !buffer_ && buffered() >= frame_.header.length) {
    check_payload(ahead_.get() + ahead_begin_);
    return ahead_.get() + ahead_begin_;
  }
  return assemble() ? buffer_.get() : nullptr;
}

PayloadBuffer Path::pop() {
  ahead_begin_ += frame_.header.length - std::min<size_t>(received_, frame_.header.length);
  has_frame_ = false;
  return std::move(buffer_);
}

PayloadBuffer Path::give_away() {
  PayloadBuffer given = pop();
  if (given) return given;
  given = std::exchange(ahead_, pool_.take());
  std::memcpy(ahead_.get(), given.get() + ahead_begin_, buffered());
  ahead_end_ -= ahead_begin_;
  ahead_begin_ = 0;
  return given;
}

size_t Path::outstanding() const {
  size_t rest = half_way_ ? sizeof sending_ + sending_.header.length - offset_ : 0;
  return rest + unconfirmed_bytes(fd());
}

// Only while data was always in flight: otherwise it would measure how little was sent.
void Path::measure(Clock::time_point now) {
  auto elapsed = now - measured_at_;
  if (elapsed < shortest_measurement) return;
  size_t unconfirmed = unconfirmed_bytes(fd());
  uint64_t delivered = bytes_written_ - std::min<uint64_t>(bytes_written_, unconfirmed);
  if (was_busy_ && unconfirmed > 0 && delivered > delivered_) {
    double sample = static_cast<double>(delivered - delivered_) /
                    std::chrono::duration<double>(elapsed).count();
    rate_ = rate_ == 0 ? sample : rate_ + weight_of_news * (sample - rate_);
    statistics_->rate.set(static_cast<uint64_t>(rate_));
  }
  measured_at_ = now;
  delivered_ = delivered;
  was_busy_ = unconfirmed > 0;
}

}  // namespace hccl
