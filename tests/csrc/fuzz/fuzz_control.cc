// Control messages from a peer: each is taken once, or the connection is lost.
#include "check.h"
#include "engine/connection/control_link.h"
#include "feed.h"

namespace hccl::fuzz {
namespace {

constexpr size_t max_turns = 64;

void append_message(Feed& feed, FeedStream& stream, uint64_t& number) {
  uint8_t changes = feed.take<uint8_t>();
  ControlMessage message;
  message.number = ++number;
  message.kind = feed.take<uint8_t>() % 5;
  if (changes & 1) message.kind = feed.take<uint32_t>();
  if (changes & 2) message.number = feed.take<uint64_t>();
  if (changes & 4) message.sequence = feed.take<uint64_t>();
  if (changes & 8) message.index = feed.take<uint32_t>();
  if (changes & 16) message.generation = feed.take<uint64_t>();
  if (changes & 32) message.path = feed.take<uint32_t>();
  if (changes & 64) message.text_length = feed.take<uint32_t>();
  if (changes & 128) message.magic = feed.take<uint32_t>();
  std::vector<std::byte> text;
  if (feed.flag()) message.text_length = feed.take<uint8_t>();
  feed.append_to(text, std::min<size_t>(message.text_length, most_text_bytes));
  auto* bytes = reinterpret_cast<const std::byte*>(&message);
  stream.incoming.insert(stream.incoming.end(), bytes, bytes + sizeof message);
  stream.incoming.insert(stream.incoming.end(), text.begin(), text.end());
}

void run(Feed& feed) {
  size_t num_paths = 1 + feed.below(3);
  std::vector<std::shared_ptr<FeedStream>> streams;
  std::vector<std::shared_ptr<Stream>> connections;
  for (size_t i = 0; i < num_paths; ++i) {
    streams.push_back(std::make_shared<FeedStream>());
    streams.back()->stride = 1 + feed.take<uint16_t>();
    connections.push_back(streams.back());
  }
  ControlLink link(connections);
  std::vector<uint64_t> numbers(num_paths);
  for (size_t turn = 0; turn < max_turns && !feed.empty(); ++turn) {
    uint8_t action = feed.take<uint8_t>();
    size_t path = (action >> 4) % num_paths;
    switch (action & 15) {
      case 0: feed.append_to(streams[path]->incoming, sizeof(ControlMessage)); break;
      case 1: streams[path]->takes = !streams[path]->takes; break;
      case 2: streams[path]->ended = true; break;
      case 3: {
        streams[path] = std::make_shared<FeedStream>();
        link.adopt(path, streams[path]);
        break;
      }
      case 4: link.say_goodbye(turn, 0, std::string(5000, 'x')); break;
      case 5: link.report_down(1, path, feed.take<uint8_t>()); break;
      case 6: link.say_goodbye(turn); break;
      case 7:
      case 8: {
        link.receive();
        CHECK(link.error().size() <= most_text_bytes);
        link.take_broken();
        link.take_paths_down();
        break;
      }
      default: append_message(feed, *streams[path], numbers[path]); break;
    }
  }
  link.receive();
}

}  // namespace
}  // namespace hccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hccl::fuzz::Feed feed(data, size);
  hccl::fuzz::run(feed);
  return 0;
}
