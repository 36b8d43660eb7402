// One connection of a lane: frames, their serial numbers, and their speed.
//
// A path outlives its connections: when one breaks, the next one replaces it.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "base/stream.h"
#include "lanes/lane.h"

namespace hccl {

// A message on a connection between two hosts, in this machine's byte order; of another one the
// magic number is wrong. After a wrong magic or serial number, an impossible length or a bad
// checksum the connection is closed, and unacknowledged messages are sent again on another one.
struct Frame {
  enum Kind : uint16_t {
    data = 1,
    ack = 2,    // nothing but `acknowledged`
    probe = 3,  // asks for an ack; its serial number shows whether frames were lost
  };
  uint16_t magic = 0x4c48;
  uint16_t kind = data;
  uint32_t serial = 0;        // of this connection: 0 for its first frame, then counting up
  uint64_t sequence = 0;      // data: the message's number in its lane, 1 for the first
  uint64_t acknowledged = 0;  // the other direction's messages up to this number have arrived
  uint32_t header_crc = 0;    // with checksums on: of this frame with both sums zero
  uint32_t payload_crc = 0;
  Header header;
};
static_assert(sizeof(Frame) == 64);

struct PathStatistics {
  int peer = 0;
  int lane = 0;
  std::string name;
  Counter bytes;            // payload sent
  Counter messages;         // sent
  Counter retransmits;      // of these, sent before on a connection that broke
  Counter stalls;           // the connection could not take a message at once
  Counter connections;      // that it has had
  Counter checksum_errors;  // damaged frames received
  Counter rate;             // bytes per second while it was busy; 0: not measured yet
  Counter connected;        // 1 or 0
};

// Begins with a cache line, as the payloads of most tensors do. The kernel copies by `rep movsb`,
// which some processors slow down five times where the destination lies up to 31 bytes behind the
// source, modulo a page (AMD's Zen 3: recv() of 64 KiB in 45 us instead of 8): offsets that are
// multiples of a line never do.
struct FreeBuffer {
  void operator()(std::byte* buffer) const { ::operator delete[](buffer, alignment); }
  static constexpr std::align_val_t alignment{64};
};
using PayloadBuffer = std::unique_ptr<std::byte[], FreeBuffer>;

inline PayloadBuffer new_buffer(size_t num_bytes) {
  return PayloadBuffer(new (FreeBuffer::alignment) std::byte[num_bytes]);
}

// Payload buffers for all copies and assembled messages of a lane.
class BufferPool {
 public:
  explicit BufferPool(size_t slot_bytes) : num_bytes_(std::max(slot_bytes, min_bytes)) {}
  PayloadBuffer take();
  void put(PayloadBuffer buffer) {
    if (buffer) spare_.push_back(std::move(buffer));
  }

  static constexpr size_t min_bytes = 4096 + sizeof(Frame);

 private:
  const size_t num_bytes_;
  std::vector<PayloadBuffer> spare_;
};

class Path {
 public:
  using Clock = std::chrono::steady_clock;

  struct Down {
    Clock::time_point since{};
    std::string why;
    StreamEnd end = StreamEnd::given_up;
  };

  Path(size_t slot_bytes, bool checksum, BufferPool& pool,
       std::shared_ptr<PathStatistics> statistics);
  ~Path() { cut({}); }

  bool up() const { return stream_ != nullptr; }
  bool was_up() const { return generation_ > 0; }
  bool may_send() const { return up() && !only_receives_; }
  int fd() const { return up() ? stream_->fd() : -1; }
  const std::shared_ptr<PathStatistics>& statistics() const { return statistics_; }
  uint64_t generation() const { return generation_; }
  const Down& down() const { return down_; }

  void adopt(std::shared_ptr<Stream> stream);
  // Ends the connection; drops partial messages in both directions.
  void cut(Down down);
  // The peer accepts no more data; its earlier data may still be read.
  void stop_sending() {
    only_receives_ = true;
    half_way_ = false;
  }

  // ---- sending
  // Begins a frame; no other may be unfinished.
  void begin(Frame frame, const std::byte* payload);
  // Sends the rest of it. True once all of it has left. Throws StreamError.
  bool go_on(const std::byte* payload);
  bool half_way() const { return half_way_; }
  bool may_begin() const { return may_send() && !half_way_; }
  // The unfinished message; 0 if there is none.
  uint64_t sending() const { return half_way_ ? sending_.sequence : 0; }

  // ---- receiving. All throw StreamError.
  // The frame at the head, or nullptr while it is still arriving. Stays until pop().
  const Frame* head();
  // The head's payload in place, or nullptr.
  const std::byte* lend();
  bool receive(std::byte* destination);
  // Reads the head's payload into a buffer, which the path keeps until pop().
  bool assemble();
  // Done with the head. Returns the buffer it was assembled in, if it was.
  PayloadBuffer pop();
  // The same; lent parts of the head stay valid as long as the result.
  PayloadBuffer give_away();
  // Whether a part of the head's payload is already in the caller's memory.
  bool is_handed_out() const { return received_ > 0 && !buffer_; }

  // ---- speed
  // Bytes on their way in this connection.
  size_t outstanding() const;
  bool delivered() const { return !half_way_ && (!is_tcp_ || unconfirmed_bytes(fd()) == 0); }
  double rate() const { return rate_; }
  void measure(Clock::time_point now);

 private:
  size_t buffered() const { return ahead_end_ - ahead_begin_; }
  bool read_ahead();
  void check_payload(const std::byte* payload);
  bool fill(std::byte* destination);

  const size_t slot_bytes_;
  const bool checksum_;
  BufferPool& pool_;
  const std::shared_ptr<PathStatistics> statistics_;
  std::shared_ptr<Stream> stream_;
  uint64_t generation_ = 0;
  Down down_;
  bool only_receives_ = false;
  bool is_tcp_ = false;  // if not, sent bytes are delivered

  Frame sending_;
  bool half_way_ = false;
  size_t offset_ = 0;  // bytes of the frame that left
  uint32_t serial_sent_ = 0;

  // Bytes read ahead: a frame and the begin of the next data. Allocated with the first connection.
  PayloadBuffer ahead_;
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  Frame frame_;
  bool has_frame_ = false;
  bool checked_ = false;  // the payload's sum is right
  size_t received_ = 0;   // payload bytes that left `ahead_` or never were in it
  uint32_t serial_received_ = 0;
  PayloadBuffer buffer_;

  uint64_t bytes_written_ = 0;
  uint64_t delivered_ = 0;  // at the last measurement
  bool was_busy_ = false;
  Clock::time_point measured_at_{};
  double rate_ = 0;
};

}  // namespace hccl
