// A lane on a queue pair: how collectives run over RDMA. It also runs over software queue pairs, so
// that it is tested where there is no such device.
//
// Each end registers a ring of slots for the peer to write to, and advertises it by the first SEND.
// After that, one message is one RDMA_WRITE_WITH_IMM of header and payload into the next slot. The
// receiver lends the payload where it lies. The immediate has two parts:
//
//   bit 31       a message lies in the next slot; without it, the immediate only returns credits
//   bits 0-15    how many messages its sender has released so far, modulo 2^16
//
// A sender has a credit for each slot, and gets credits back with each message of the peer, or by an
// empty write once half of the slots were released. So neither end ever waits for the other's last
// credit. Each end has a RECV posted for everything that the peer can have under way: there is no
// receiver that is not ready.
//
// A queue pair notices that its peer is gone when a request gets no answer. An end that only waits has
// none under way: before it sleeps it sends an empty RDMA_WRITE, a probe, if it heard nothing for a
// while.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "verbs/verbs.h"

namespace hccl {

class LaneOverQueuePair final : public QueuedLane {
 public:
  // What the queue pair has to be made with.
  static QueuePairAttributes attributes();

  // `pair` is connected, and nothing was posted to it yet. Throws InvalidVerb.
  LaneOverQueuePair(int peer, std::shared_ptr<QueuePairFace> pair, size_t slot_bytes,
                    Statistics& statistics);
  // Waits a moment for messages that have left to reach the peer.
  ~LaneOverQueuePair() override;

  std::vector<int> descriptors() const override { return pair_->descriptors(); }
  void prepare_sleep(Sleep& sleep) override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

 protected:
  bool push(const Header& header, const std::byte* payload) override;

 private:
  static constexpr size_t num_slots = 8;
  static constexpr size_t num_recvs = 2 * num_slots + 1;

  // Where the peer's messages go. It travels in the first SEND.
  struct Advertisement {
    uint64_t magic;
    uint64_t address;
    uint64_t slot_bytes;
    uint32_t num_slots;
    uint32_t rkey;
  };

  std::byte* slot_in(uint64_t number) { return &memory_[number % num_slots * stride_]; }
  std::byte* slot_out(uint64_t number) { return &memory_[(num_slots + number % num_slots) * stride_]; }
  void advertise();
  void poll();
  void take(const Completion& completion);
  void take_advertisement(size_t length);
  void take_immediate(uint32_t imm, size_t length);
  void fail(std::string text) { failure_ = std::move(text); }
  void throw_if_failed() const;
  bool has_room() const;
  void write(const std::byte* source, size_t length, uint32_t flags, uint32_t imm);
  void return_credits();
  void probe();

  const size_t stride_;
  std::vector<std::byte> memory_;  // slots of the peer's messages, slots of ours, advertisements
  const std::shared_ptr<QueuePairFace> pair_;  // destroyed before the memory
  uint32_t lkey_ = 0;
  uint64_t their_address_ = 0;  // 0: not advertised yet
  uint32_t their_rkey_ = 0;
  std::string failure_;

  // Messages, counted from the first one.
  uint64_t sent_ = 0;
  uint64_t ended_ = 0;     // of these, whose slot here is free again
  uint64_t credited_ = 0;  // of these, whose slot at the peer is free again
  uint64_t arrived_ = 0;
  uint64_t released_ = 0;
  uint64_t returned_ = 0;  // of these, what the peer knows

  size_t lengths_[num_slots] = {};  // of what arrived, by slot
  // The peeked message as it was when it was looked at: the peer can write to its slot again.
  Header header_;
  bool peeked_ = false;

  bool is_starved_ = false;  // since the last sleep a caller found no message or no room
  bool is_probing_ = false;
  uint64_t heard_ = 0;    // completions
  uint64_t heard_at_ = 0;  // of these, when it last looked whether there was any
  VerbsClock::time_point silent_since_ = VerbsClock::now();
};

}  // namespace hccl
