// A peer that writes anything anywhere into its segment, at any moment: nothing outside of it is
// read, and what was looked at once does not change under the reader's hands.
#include "check.h"
#include "feed.h"
#include "lanes.h"

namespace hccl::fuzz {
namespace {

constexpr size_t max_turns = 64;

class Puppet {
 public:
  Puppet(Feed& feed, const test::Ends& ends)
      : feed_(feed), theirs_(*ends.segments[1]), ring_(theirs_.ring(0, 0)) {}

  // The next cell, right but for what the input says about it.
  void publish() {
    uint8_t changes = feed_.take<uint8_t>();
    Cell& cell = ring_[num_sent_ % ring_cells];
    cell.slot = static_cast<int>(feed_.below(4)) - 1;
    cell.header = Header{};
    cell.header.length = feed_.take<uint8_t>() % inline_bytes;
    if (changes & 1) cell.slot = feed_.take<int32_t>();
    if (changes & 2) cell.header.length = feed_.take<uint32_t>();
    if (changes & 4) cell.header.length = static_cast<uint32_t>(test::slot_bytes);
    uint32_t sequence = static_cast<uint32_t>(++num_sent_);
    if (changes & 8) sequence = feed_.take<uint32_t>();
    cell.sequence.store(sequence, std::memory_order_seq_cst);
  }
  void scribble() {
    uint8_t changes = feed_.take<uint8_t>();
    Cell& cell = ring_[(num_sent_ + ring_cells - 1) % ring_cells];
    if (changes & 1) cell.slot = feed_.take<int32_t>();
    if (changes & 2) cell.header.length = feed_.take<uint32_t>();
    if (changes & 4) theirs_.header().sleepers.store(feed_.take<uint32_t>());
    if (changes & 8) theirs_.header().sleeps.store(feed_.take<uint32_t>());
    if (changes & 16) theirs_.consumed(0, 0).count.store(feed_.take<uint64_t>());
    if (changes & 32) theirs_.consumed(0, 0).count.store(feed_.below(80));
  }

 private:
  Feed& feed_;
  Segment& theirs_;
  Cell* ring_;
  uint64_t num_sent_ = 0;
};

// `between`: what the peer does while we are at it.
template <typename Between>
void take(Lane& lane, bool lends, const Between& between) {
  const Header* header = lane.peek();
  if (header == nullptr) return;
  size_t length = header->length;
  CHECK(length <= test::slot_bytes);
  std::unique_ptr<std::byte[]> buffer(new std::byte[length]);
  between();
  CHECK(lane.peek() != nullptr && lane.peek()->length == length);
  if (lends) {
    touch(lane.lend(), length);
  } else {
    CHECK(lane.receive(buffer.get()));
    touch(buffer.get(), length);
  }
  lane.release();
}

void run(Feed& feed) {
  std::unique_ptr<test::Ends> ends = test::shm_lane();
  Lane& lane = *ends->left;
  Puppet puppet(feed, *ends);
  const std::vector<std::byte> payload(test::slot_bytes);
  for (size_t turn = 0; turn < max_turns && !feed.empty(); ++turn) {
    switch (feed.below(8)) {
      case 0: puppet.scribble(); break;
      case 1: {
        Header header;
        header.length = static_cast<uint32_t>(feed.flag() ? test::slot_bytes : feed.below(100));
        lane.post_send(header, payload.data());
        break;
      }
      case 2: lane.flush(); break;
      case 3: lane.taken(); break;
      case 4: case 5: {
        bool lends = feed.flag();
        take(lane, lends, [&] { puppet.scribble(); });
        break;
      }
      default: puppet.publish(); break;
    }
  }
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
