// Messages of any content from a peer whose lane works: send and recv, and plans.
// The engine writes where it was asked to and nowhere else, or says what is wrong.
#include <list>

#include "check.h"
#include "engine/calls/recorder.h"
#include "engine/calls/stragglers.h"
#include "engine/collective/collective.h"
#include "engine/point_to_point.h"
#include "engine/window.h"
#include "feed.h"

namespace hccl::fuzz {
namespace {

constexpr size_t slot_bytes = 4096;
constexpr size_t max_turns = 48;
constexpr int me = 0, world_size = 3;

class Peers {
 public:
  explicit Peers(std::vector<std::unique_ptr<Lane>>& lanes) {
    for (int peer = 1; peer < world_size; ++peer) {
      auto lane = std::make_unique<PuppetLane>(peer, slot_bytes, statistics_);
      lanes_.push_back(lane.get());
      lanes.at(static_cast<size_t>(peer)) = std::move(lane);
    }
  }
  PuppetLane& any(Feed& feed) { return *lanes_[feed.below(lanes_.size())]; }

 private:
  Statistics statistics_;
  std::vector<PuppetLane*> lanes_;
};

// A header with small numbers, as most that fit are, or with any.
Header header_from(Feed& feed, const PuppetLane& lane) {
  Header header;
  uint8_t changes = feed.take<uint8_t>();
  header.kind = feed.take<uint8_t>() % 7;
  header.fingerprint = feed.below(4);
  header.id = feed.below(6);
  header.length = static_cast<uint32_t>(feed.take<uint8_t>());
  header.size = header.length;
  if (changes & 1) header.kind = feed.take<uint16_t>();
  if (changes & 2) header.fingerprint = feed.take<uint64_t>();
  if (changes & 4) header.id = lane.last_posted.id;
  if (changes & 8) header.size = feed.take<uint64_t>();
  if (changes & 16) header.length = feed.take<uint16_t>();
  if (changes & 32) header.size = feed.take<uint16_t>();
  if (changes & 64) header.length = 0;
  if (changes & 128) header.fingerprint = lane.last_posted.id;
  return header;
}

void disturb(Feed& feed, PuppetLane& lane) {
  uint8_t what = feed.take<uint8_t>();
  lane.flows = !(what & 1);
  lane.broken = what >= 0xf8;
}

void run_point_to_point(Feed& feed) {
  Recorder recorder;
  Statistics statistics;
  PointToPoint engine(me, world_size, slot_bytes, recorder, statistics);
  Peers peers(engine.lanes());
  std::list<std::unique_ptr<std::byte[]>> buffers;
  constexpr uint64_t id = 2;
  constexpr size_t window_bytes = 1000;
  std::unique_ptr<std::byte[]> exposed(new std::byte[window_bytes]());
  std::span<std::byte> memory(exposed.get(), window_bytes);
  auto window = std::make_shared<Window>(nullptr, me, world_size, memory);
  Windows::open(engine.windows(), *window, id, true);
  for (size_t turn = 0; turn < max_turns && !feed.empty(); ++turn) {
    PuppetLane& lane = peers.any(feed);
    switch (feed.below(8)) {
      case 0:
      case 1: {
        auto request = std::make_shared<Request>();
        request->kind = feed.flag() ? RequestKind::send : RequestKind::recv;
        request->peer = request->kind == RequestKind::recv && feed.below(4) == 0 ? any_rank
                        : feed.below(8) == 0                                     ? me
                                                                                 : lane.peer();
        request->tag = feed.below(4);
        request->num_bytes = feed.flag() ? feed.take<uint16_t>() % 20000 : feed.below(256);
        request->deadline = Clock::now() + std::chrono::seconds(feed.below(3));
        buffers.emplace_back(new std::byte[request->num_bytes]());
        request->address = buffers.back().get();
        engine.post(request);
        break;
      }
      case 5: {
        auto request = std::make_shared<Request>();
        request->kind = static_cast<RequestKind>(3 + feed.below(3));
        bool puts = request->kind == RequestKind::put;
        request->peer = lane.peer();
        request->tag = id;
        request->window = window;
        request->offset = feed.below(puts ? 2000 : 2);
        request->num_bytes = puts ? 1 + feed.take<uint16_t>() % 20000 : 0;
        request->deadline = Clock::now() + std::chrono::seconds(feed.below(3));
        buffers.emplace_back(new std::byte[request->num_bytes]());
        request->address = buffers.back().get();
        engine.post(request);
        break;
      }
      case 2: engine.expire(Clock::now() + std::chrono::seconds(feed.below(3))); break;
      case 3: disturb(feed, lane); break;
      case 4: engine.progress(); break;
      default: {
        Header header = header_from(feed, lane);
        lane.deliver(header, feed, feed.below(3));
        engine.progress();
        break;
      }
    }
  }
  engine.progress();
  std::vector<RequestPtr> unfinished;
  engine.abandon(unfinished);
  window->withdraw(false);
}

void run_plan(Feed& feed) {
  Plan plan;
  plan.data_chunks = world_size;
  plan.min_message_bytes = 64;
  plan.peers = {1, 2};
  plan.compressed = {1, 1};
  auto chunk = [](int i) { return ChunkRef{Buffer::data, i, i + 1, -1}; };
  plan.ops = {{OpKind::send, 0, 2, {}, chunk(1)},
              {OpKind::recv_reduce, 0, 2, chunk(me), {}},
              {OpKind::send, 0, 2, {}, chunk(me)},
              {OpKind::recv, 0, 1, chunk(1), {}},
              {OpKind::recv, 1, 1, chunk(2), {}}};
  plan.validate(me, world_size);
  size_t count = feed.take<uint16_t>() % 3000;
  std::unique_ptr<float[]> data(new float[count]());
  Call call;
  call.plan = &plan;
  call.data = {reinterpret_cast<std::byte*>(data.get()), count};
  call.dtype = DType::float32;
  call.fingerprint = feed.below(2);
  call.compression = static_cast<Compression>(feed.below(num_compressions));
  std::unique_ptr<float[]> residual(feed.flag() ? new float[count]() : nullptr);
  call.residual = reinterpret_cast<std::byte*>(residual.get());
  Tiling tiling(call, slot_bytes, 1);
  Stragglers stragglers(me, world_size);
  stragglers.begin(1);
  CompressionStatistics coded;
  Channel channel(me, world_size, slot_bytes, 0, 1, stragglers, coded);
  Peers peers(channel.lanes());
  channel.start(call, tiling);
  for (size_t turn = 0; turn < max_turns && !feed.empty() && !channel.finished(); ++turn) {
    PuppetLane& lane = peers.any(feed);
    if (feed.below(8) == 0) disturb(feed, lane);
    Header header = header_from(feed, lane);
    if (feed.below(4)) {  // what it waits for, or close to it
      header.fingerprint = call.fingerprint;
      header.size = lane.last_posted.size;
      header.length = lane.last_posted.length;
    }
    lane.deliver(header, feed, feed.below(3));
    channel.step();
    channel.flush();
    stragglers.turn(false, false);
    channel.waiting_for();
  }
}

void run(Feed& feed) {
  switch (feed.below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: return run_plan(feed);
    default: return run_point_to_point(feed);
  }
}

}  // namespace
}  // namespace hccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hccl::fuzz::Feed feed(data, size);
  try {
    hccl::fuzz::run(feed);
  } catch (const hccl::LaneError&) {
  } catch (const hccl::Mismatch&) {
    // The answers to most of it.
  }
  return 0;
}
