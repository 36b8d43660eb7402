// Packets of any content from the other end of a queue pair: only registered memory is touched, and
// only as its access allows.
#include "check.h"
#include "feed.h"
#include "verbs/software/queue_pair.h"

namespace hccl::fuzz {
namespace {

constexpr size_t slot_bytes = 1024;
constexpr size_t region_bytes = 4096;
constexpr size_t max_turns = 48;

// Its memory is to the byte what is registered, so ASan guards both ends.
struct Region {
  std::unique_ptr<std::byte[]> memory{new std::byte[region_bytes]()};
  MemoryRegion registered;
  Region(ProtectionDomain& domain, uint32_t access)
      : registered(domain.register_memory(reinterpret_cast<uint64_t>(memory.get()), region_bytes,
                                          access)) {}
};

class Target {
 public:
  explicit Target(Feed& feed)
      : feed_(feed),
        lane_(std::make_shared<PuppetLane>(1, slot_bytes, statistics_)),
        domain_(std::make_shared<ProtectionDomain>()),
        queue_(std::make_shared<CompletionQueue>(256)),
        open_(*domain_, access_local_write | access_remote_write | access_remote_read),
        shut_(*domain_, access_local_write) {
    QueuePairAttributes attributes;
    attributes.max_send_wr = attributes.max_recv_wr = 16;
    attributes.rnr_retry = static_cast<int>(feed.below(8));
    pair_ = std::make_shared<QueuePair>(no_thread(), domain_, queue_, queue_, attributes);
    pair_->modify(QueuePairState::init);
    auto lane = [this](Statistics&) { return lane_; };
    pair_->attach(std::make_shared<UnderlyingLane>(slot_bytes, lane));
    pair_->modify(QueuePairState::rtr);
    pair_->modify(QueuePairState::rts);
  }
  ~Target() {
    lane_->flows = true;
    // The peer's goodbye, or closing would wait for one.
    lane_->deliver(std::bit_cast<Header>(Packet{.kind = PacketKind::goodbye}), feed_, 0);
    lane_->broken = true;
    pair_->close();
    for (size_t i = 0; i < region_bytes; ++i) CHECK(shut_.memory[i] == std::byte{});
  }

  void run() {
    for (size_t turn = 0; turn < max_turns && !feed_.empty(); ++turn) {
      switch (feed_.below(8)) {
        case 0: post_send(); break;
        case 1: post_recv(); break;
        case 2: lane_->flows = !lane_->flows; break;
        case 3: lane_->broken = feed_.take<uint8_t>() > 0xf0; break;
        default: deliver(); break;
      }
      pair_->drive();
      Completion completions[8];
      queue_->poll(completions);
    }
  }

 private:
  // A progress thread that has ended: the target alone drives.
  static std::shared_ptr<ProgressThread> no_thread() {
    static auto thread = std::make_shared<ProgressThread>();
    thread->stop();
    return thread;
  }

  void post_send() {
    constexpr Opcode opcodes[] = {Opcode::send, Opcode::rdma_write, Opcode::rdma_read,
                                  Opcode::send_with_imm};
    ScatterGather piece{open_.registered.address, feed_.take<uint16_t>() % 4000u,
                        open_.registered.rkey};
    SendRequest request;
    request.opcode = opcodes[feed_.below(4)];
    request.flags = feed_.flag() ? send_signaled : send_signaled | send_fence;
    request.pieces = {&piece, 1};
    try {
      pair_->post_send(request);
    } catch (const QueueFull&) {
    }
  }
  void post_recv() {
    ScatterGather pieces[2];
    for (ScatterGather& piece : pieces) {
      piece = {open_.registered.address + feed_.below(256), feed_.take<uint16_t>() % 2000u,
               open_.registered.rkey};
    }
    try {
      pair_->post_recv({1, {pieces, 1 + feed_.below(2)}});
    } catch (const QueueFull&) {
    }
  }

  void deliver() {
    uint8_t changes = feed_.take<uint8_t>();
    Packet packet;
    packet.kind = static_cast<PacketKind>(feed_.below(12));
    packet.size = packet.length = feed_.take<uint8_t>();
    packet.last = true;
    packet.number = number_;
    packet.rkey = open_.registered.rkey;
    packet.remote_address = open_.registered.address + feed_.below(256);
    if (changes & 1) packet.size = feed_.take<uint32_t>();
    if (changes & 2) packet.last = false;
    if (changes & 4) packet.number = feed_.take<uint16_t>();
    if (changes & 8) packet.acked = feed_.take<uint8_t>() % 20u;
    if (changes & 16) packet.rkey = feed_.flag() ? shut_.registered.rkey : feed_.take<uint32_t>();
    if (changes & 32) packet.remote_address += feed_.take<uint16_t>();
    if (changes & 64) packet.size = 300 + feed_.take<uint16_t>();
    if (changes & 128) {
      switch (feed_.below(3)) {
        case 0: packet.acked = feed_.take<uint16_t>(); break;
        case 1: packet.remote_address = feed_.take<uint64_t>(); break;
        case 2: packet.remote_address = shut_.registered.address; break;
      }
    }
    packet.imm = feed_.take<uint8_t>();
    if (packet.kind >= PacketKind::send && packet.kind <= PacketKind::read && packet.last) {
      ++number_;
    }
    if (packet.kind == PacketKind::read && !(changes & 1)) packet.length = 0;
    if (packet.kind == PacketKind::more && packet.last) ++number_;
    lane_->deliver(std::bit_cast<Header>(packet), feed_, feed_.below(3));
  }

  Feed& feed_;
  Statistics statistics_;
  std::shared_ptr<PuppetLane> lane_;
  std::shared_ptr<ProtectionDomain> domain_;
  std::shared_ptr<CompletionQueue> queue_;
  Region open_;  // to the peer
  Region shut_;  // to it
  std::shared_ptr<QueuePair> pair_;
  uint16_t number_ = 0;
};

}  // namespace
}  // namespace hccl::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hccl::fuzz::Feed feed(data, size);
  try {
    hccl::fuzz::Target(feed).run();
  } catch (const hccl::CompletionQueueOverflow&) {
  }
  return 0;
}
