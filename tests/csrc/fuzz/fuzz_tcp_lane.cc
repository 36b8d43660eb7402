// Frames from a peer: whatever comes, TcpLane hands out whole messages in order, within a slot, or
// loses the connection.
#include "base/crc32c.h"
#include "check.h"
#include "feed.h"
#include "lanes/tcp.h"

namespace hccl::fuzz {
namespace {

constexpr size_t slot_bytes = 512;
constexpr size_t max_turns = 64;

// A frame that is right, but for what the input says about it.
class Forger {
 public:
  Forger(Feed& feed, bool checksum) : feed_(feed), checksum_(checksum) {}

  void write_to(FeedStream& stream, uint32_t& serial) {
    uint8_t changes = feed_.take<uint8_t>();
    std::vector<std::byte> payload;
    Frame frame;
    frame.serial = serial++;
    frame.sequence = ++sequence_;
    frame.header.id = sequence_;
    frame.header.length = static_cast<uint32_t>(feed_.below(200));
    if (changes & 1) frame.kind = feed_.take<uint16_t>();
    if (changes & 2) frame.sequence = sequence_ = sequence_ + feed_.below(70) - 4;
    if (changes & 4) frame.acknowledged = feed_.take<uint8_t>();
    if (changes & 8) frame.header.length = feed_.take<uint32_t>();
    if (changes & 16) frame.serial = feed_.take<uint32_t>();
    if (changes & 32) frame.header.length = static_cast<uint32_t>(slot_bytes - feed_.below(3));
    if (frame.kind != Frame::data) frame.header.length *= changes & 8 ? 1 : 0;
    if (changes & 64) frame.acknowledged = feed_.take<uint64_t>();
    feed_.append_to(payload, std::min<size_t>(frame.header.length, slot_bytes));
    payload.resize(std::min<size_t>(frame.header.length, slot_bytes));
    if (checksum_ && !(changes & 128)) {
      frame.payload_crc = crc32c(payload.data(), payload.size());
      frame.header_crc = crc32c(&frame, sizeof frame);
    }
    auto* bytes = reinterpret_cast<const std::byte*>(&frame);
    stream.incoming.insert(stream.incoming.end(), bytes, bytes + sizeof frame);
    stream.incoming.insert(stream.incoming.end(), payload.begin(), payload.end());
  }

 private:
  Feed& feed_;
  const bool checksum_;
  uint64_t sequence_ = 0;
};

class Receiver {
 public:
  explicit Receiver(TcpLane& lane) : lane_(lane) {}

  // Takes a step with the message at the head, if there is one. As the engine does: the same way
  // for every try at one message, and its length is looked at each time.
  void step(bool lends) {
    const Header* header = lane_.peek();
    if (header == nullptr) return;
    Header seen = *header;
    CHECK(seen.length <= slot_bytes);
    if (!under_way_) lends_ = lends;
    under_way_ = true;
    if (!(lends_ ? lend(seen) : receive(seen))) return;
    CHECK(lane_.peek() != nullptr && lane_.peek()->id == seen.id);
    lane_.release();
    under_way_ = false;
  }

 private:
  bool lend(const Header& header) {
    const std::byte* payload = lane_.lend();
    if (payload == nullptr) return false;
    touch(payload, header.length);
    return true;
  }
  // To the byte: one too many is one outside.
  bool receive(const Header& header) {
    if (!buffer_ || length_ != header.length) {
      length_ = header.length;
      buffer_.reset(new std::byte[length_]);
    }
    if (!lane_.receive(buffer_.get())) return false;
    touch(buffer_.get(), length_);
    return true;
  }

  TcpLane& lane_;
  bool under_way_ = false;
  bool lends_ = false;
  std::unique_ptr<std::byte[]> buffer_;
  size_t length_ = 0;
};

void run(Feed& feed) {
  uint8_t mode = feed.take<uint8_t>();
  size_t num_paths = 1 + (mode & 3) % 3;
  TcpOptions options;
  options.slot_bytes = slot_bytes;
  options.checksum = mode & 4;
  std::vector<std::shared_ptr<FeedStream>> streams;
  std::vector<std::shared_ptr<Stream>> connections;
  for (size_t i = 0; i < num_paths; ++i) {
    streams.push_back(std::make_shared<FeedStream>());
    connections.push_back(streams.back());
    if (mode & 8) streams.back()->stride = 1 + feed.below(200);
  }
  Statistics statistics;
  TcpLane lane(1, connections, options, statistics);
  Forger forger(feed, options.checksum);
  Receiver receiver(lane);
  std::vector<uint32_t> serials(num_paths);
  const std::vector<std::byte> payload(slot_bytes);
  for (size_t turn = 0; turn < max_turns && !feed.empty(); ++turn) {
    uint8_t action = feed.take<uint8_t>();
    size_t path = (action >> 4) % num_paths;
    switch (action & 15) {
      case 0: feed.append_to(streams[path]->incoming, 1 + feed.take<uint8_t>()); break;
      case 1: streams[path]->takes = !streams[path]->takes; break;
      case 2: lane.tend(TcpLane::Clock::now() + std::chrono::seconds(turn)); break;
      case 3: lane.poll(); break;
      case 4: lane.flush(); break;
      case 5: {
        Header header;
        header.length = static_cast<uint32_t>(feed.below(2) ? slot_bytes : feed.below(100));
        lane.post_send(header, payload.data());
        break;
      }
      case 6: streams[path]->ended = true; break;
      case 7: {
        streams[path] = std::make_shared<FeedStream>();
        serials[path] = 0;
        lane.adopt(path, streams[path]);
        break;
      }
      case 8:
      case 9: receiver.step(true); break;
      case 10:
      case 11: receiver.step(false); break;
      default: forger.write_to(*streams[path], serials[path]); break;
    }
  }
  for (size_t turn = 0; turn < max_turns; ++turn) receiver.step(turn & 1);
}

}  // namespace
}  // namespace hccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hccl::fuzz::Feed feed(data, size);
  try {
    hccl::fuzz::run(feed);
  } catch (const hccl::LaneError&) {
    // The answer to most of it.
  }
  return 0;
}
