// A lane on queue pairs: how collectives run over RDMA. It also runs over software queue pairs, so
// that it is tested where there is no such device.
//
// Each end registers a ring of slots for the peer to write to, and advertises it by the first SEND.
// After that a message is one RDMA_WRITE_WITH_IMM into the next slot. It takes one of four forms:
//
//   plain      header and payload, which the sender copied
//   gathered   header, note and payload, which the device reads where the sender has it
//   announced  header and note: the receiver reads the payload out of the sender's memory (RDMA_READ)
//   answered   header: the payload was written to where an earlier note of the receiver asked for it
//
// Only payloads in registered memory are gathered and announced. The receiver lends a plain or gathered
// payload where it lies, and reads an announced one to where it is received if that is registered, else
// into its slot. What nobody reduces is announced: neither side copies it. What may be reduced is gathered,
// because the receiver reduces it out of its slot and would only wait longer for a read.
//
// The immediate has three parts:
//
//   bit 31       a message lies in the next slot; without it, the immediate only returns credits
//   bits 29-30   its form
//   bits 0-15    how many messages its sender has released so far, modulo 2^16
//
// A sender has a credit for each slot, and gets credits back with each message of the peer, by an
// empty write once half of the slots were released, and at once for an announced message, whose payload
// is borrowed until then. So neither end ever waits for the other's last credit. Each end has a RECV
// posted for everything that the peer can have under way: there is no receiver that is not ready.
//
// With several queue pairs, messages take turns on them. Each queue pair is ordered, so the number of a
// message follows from its place; credits that overtook others are the larger number.
//
// A queue pair notices that its peer is gone when a request gets no answer. An end that only waits has
// none under way: before it sleeps it sends an empty RDMA_WRITE, a probe, if it heard nothing for a
// while.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "verbs/lane_slots.h"
#include "verbs/registered_memory.h"
#include "verbs/verbs.h"

namespace hccl {

class LaneOverQueuePair final : public QueuedLane {
 public:
  // What a header's `kind` means: how a payload of a collective may travel, or what a transfer's message
  // is, whose payloads may all be announced.
  enum class Traffic { collectives, transfers };

  // The queue pairs of `slots` are connected. Throws InvalidVerb.
  LaneOverQueuePair(int peer, std::unique_ptr<LaneSlots> slots, Statistics& statistics);
  // Waits a moment for messages that have left to reach the peer.
  ~LaneOverQueuePair() override;

  // From now on payloads in `memory` are not copied; below `min_bytes` the copy costs less. All queue
  // pairs are of its protection domain. Before the first message.
  void set_registered(std::shared_ptr<RegisteredMemory> memory, Traffic traffic,
                      size_t min_bytes = 16384);

  std::vector<int> descriptors() const override;
  void prepare_sleep(Sleep& sleep) override;
  uint64_t completed() const override;
  bool settled() const override { return flushed() && num_lent_ == 0; }
  bool flush() override;
  void detach() override;
  void abandon() override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

 protected:
  bool push(const Header& header, const std::byte* payload) override;

 private:
  static constexpr size_t num_slots = LaneSlots::num_slots;
  using Way = LaneSlots::Way;
  using Use = RegisteredMemory::Use;
  enum Form : uint32_t { plain = 0, gathered = 1, announced = 2, answered = 3 };
  enum class Reading { no, under_way, ended };

  // A message whose payload stays in its owner's memory until then.
  struct Lent {
    uint64_t number = 0;  // as post_send returned it; 0: none
    bool until_released = false;  // by the peer; else until it has left
    std::shared_ptr<const void> hold;
  };
  // The memory for one later message of a lane.
  struct Reply {
    uint64_t number = 0;  // of the message; 0: none
    uint64_t address = 0;
    size_t num_bytes = 0;
    uint32_t rkey = 0;
    std::shared_ptr<const void> hold;
  };

  Way& way_of(uint64_t number) { return ways_[(number - 1) % ways_.size()]; }
  const Way& way_of(uint64_t number) const { return ways_[(number - 1) % ways_.size()]; }
  void poll();
  void take(Way& way, const Completion& completion);
  void take_immediate(Way& way, uint32_t imm, size_t length);
  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }
  void throw_if_failed() const;
  bool has_ended(uint64_t number) const { return way_of(number).ended >= number; }
  bool all_ended() const;
  bool has_room() const;
  bool must_signal(uint64_t number) const;
  void write(Way& way, std::span<const ScatterGather> pieces, uint32_t flags, uint32_t imm);
  void write_answer(const std::byte* payload, const std::optional<Use>& source);
  std::optional<Use> registered(const std::byte* payload, size_t length);
  bool awaits_reply(const Header& header) const;
  Note note_of(const Header& header, const Use& source);
  void take_back();
  void parse();
  void start_read(std::byte* destination);
  [[noreturn]] void throw_malformed() const;
  void return_credits();
  void probe();

  const std::unique_ptr<LaneSlots> slots_;
  std::vector<Way>& ways_;
  std::shared_ptr<RegisteredMemory> memory_;  // nullptr: everything is copied
  Traffic traffic_ = Traffic::collectives;
  size_t min_bytes_ = 0;
  std::string failure_;

  // Messages, counted from the first one.
  uint64_t sent_ = 0;
  uint64_t credited_ = 0;  // of these, whose slot at the peer is free again
  uint64_t arrived_ = 0;   // all up to this one
  uint64_t released_ = 0;
  uint64_t returned_ = 0;  // of these, what the peer knows
  bool is_awaited_ = false;  // the peer waits to hear of the latest of these

  Lent lent_[num_slots];  // by slot
  int num_lent_ = 0;
  Reply asked_;  // where the peer writes one of its messages

  size_t lengths_[num_slots] = {};  // of what arrived, by slot
  Form forms_[num_slots] = {};
  // The peeked message as it was when it was looked at: the peer can write to its slot again.
  Header header_;
  Note note_;
  Form form_ = plain;
  bool peeked_ = false;
  const std::byte* payload_ = nullptr;  // where it is whole
  Reading reading_ = Reading::no;
  std::shared_ptr<const void> read_hold_;
  Reply reply_;  // where one of our next messages goes

  bool is_starved_ = false;  // since the last sleep a caller found no message or no room
  bool is_probing_ = false;
  size_t num_probes_ = 0;
  uint64_t heard_ = 0;    // completions
  uint64_t heard_at_ = 0;  // of these, when it last looked whether there was any
  VerbsClock::time_point silent_since_ = VerbsClock::now();
};

}  // namespace hccl
