// What a fuzzer's bytes become: numbers, and a connection or a lane that delivers what they say.
//
// Every target is one function, LLVMFuzzerTestOneInput. A decoder reads decisions from the front of
// the input; where the input is at its end, every decision is zero, so any input means something.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "base/stream.h"
#include "lanes/lane.h"

namespace hccl::fuzz {

class Feed {
 public:
  Feed(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }

  template <typename Number>
  Number take() {
    Number number{};
    size_t count = std::min(size_, sizeof number);
    if (count) std::memcpy(&number, data_, count);
    skip(count);
    return number;
  }
  // A number below `limit`, from one byte.
  size_t below(size_t limit) { return take<uint8_t>() % limit; }
  bool flag() { return take<uint8_t>() & 1; }

  // As many bytes as there are, up to `limit`.
  void append_to(std::vector<std::byte>& bytes, size_t limit) {
    size_t count = std::min(size_, limit);
    auto* begin = reinterpret_cast<const std::byte*>(data_);
    bytes.insert(bytes.end(), begin, begin + count);
    skip(count);
  }

 private:
  void skip(size_t count) {
    data_ += count;
    size_ -= count;
  }

  const uint8_t* data_;
  size_t size_;
};

// Reads every byte, so that a sanitizer sees whether they may be read.
inline void touch(const std::byte* bytes, size_t count) {
  std::byte copy[512];
  for (size_t i = 0; i < count; i += sizeof copy) {
    std::memcpy(copy, bytes + i, std::min(sizeof copy, count - i));
    asm volatile("" : : "r"(copy) : "memory");  // the copy is not to be left out
  }
}

// The other end of a connection: what it sends is in `incoming`, at most `stride` bytes a read;
// what it is sent it swallows, as long as `takes`.
class FeedStream final : public Stream {
 public:
  std::vector<std::byte> incoming;
  size_t stride = ~size_t{0};
  bool takes = true;
  bool ended = false;  // after what is there

  int fd() const override { return -1; }
  void close() override {}

  size_t send(std::span<const iovec> parts) override {
    if (ended) throw StreamError("it is gone", StreamEnd::closed);
    size_t count = 0;
    for (const iovec& part : parts) {
      touch(static_cast<const std::byte*>(part.iov_base), part.iov_len);
      count += part.iov_len;
    }
    return takes ? count : 0;
  }

  size_t receive(std::span<const iovec> parts) override {
    size_t count = 0;
    for (const iovec& part : parts) {
      size_t now = std::min({part.iov_len, incoming.size() - begin_, stride - count});
      if (now) std::memcpy(part.iov_base, incoming.data() + begin_, now);
      begin_ += now;
      count += now;
    }
    if (count == 0 && ended) throw StreamError("it is gone", StreamEnd::closed);
    return count;
  }

 private:
  size_t begin_ = 0;
};

// A lane that keeps what lane.h promises, and delivers messages of any content. Nothing beyond a
// message's length may be read, nor anything of it after release().
class PuppetLane final : public Lane {
 public:
  PuppetLane(int peer, size_t slot_bytes, Statistics& statistics)
      : Lane(peer, slot_bytes, statistics) {}

  // What the peer sends next. `delay`: how often its payload is not all there yet.
  void deliver(Header header, Feed& feed, size_t delay) {
    header.length = static_cast<uint32_t>(std::min<size_t>(header.length, slot_bytes_));
    std::vector<std::byte> payload;
    feed.append_to(payload, header.length);
    payload.resize(header.length);
    incoming_.push_back({header, std::move(payload), delay});
  }
  // Whether the lane takes what is posted, and gives payloads back.
  bool flows = true;
  bool broken = false;
  std::atomic<bool> is_written{false};  // what abandon() says
  Header last_posted;

  uint64_t post_send(const Header& header, const std::byte* payload) override {
    if (broken) throw LaneError(peer(), "it is gone");
    touch(payload, header.length);
    last_posted = header;
    ++posted_;
    flush();
    return posted_;
  }
  bool flush() override {
    bool moved = flows && completed_ < posted_;
    if (flows) completed_ = posted_;
    return moved;
  }
  uint64_t completed() const override { return completed_; }
  bool flushed() const override { return completed_ == posted_; }
  bool settled() const override { return flushed(); }
  void detach() override { completed_ = std::min(completed_ + 1, posted_); }
  bool abandon() override { return !is_written; }

  const Header* peek() override {
    if (!incoming_.empty()) return &incoming_.front().header;
    if (broken) throw LaneError(peer(), "it is gone");
    return nullptr;
  }
  const std::byte* lend() override {
    Message& message = incoming_.front();
    if (message.delay > 0 && message.delay--) return nullptr;
    // Not null for an empty message.
    return message.payload.empty() ? reinterpret_cast<std::byte*>(&message.header)
                                   : message.payload.data();
  }
  bool receive(std::byte* destination) override {
    Message& message = incoming_.front();
    size_t whole = message.payload.size();
    size_t count = message.delay > 0 ? whole / 2 : whole;
    if (count) std::memcpy(destination, message.payload.data(), count);
    return message.delay == 0 || message.delay-- == 0;
  }
  void release() override { incoming_.erase(incoming_.begin()); }

 private:
  struct Message {
    Header header;
    std::vector<std::byte> payload;
    size_t delay;
  };

  std::vector<Message> incoming_;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
};

}  // namespace hccl::fuzz
