// A lane on queue pairs: how collectives run over RDMA. It also runs over software queue pairs, so
// that it can be tested without a device.
//
// Each end registers a ring of slots for the peer to write to, and advertises it by the first SEND.
// After that a message is one RDMA_WRITE_WITH_IMM into the next slot. It takes one of four forms:
//
//   plain      header and payload, which the sender copied
//   gathered   header, note and payload, which the device reads where the sender has it
//   announced  header and note: the receiver reads the payload from the sender's memory
//   (RDMA_READ) answered   header: the payload was written to where an earlier note of the receiver
//   asked for it
//
// Only payloads in registered memory are gathered and announced. The receiver lends a plain or
// gathered payload where it lies, and reads an announced one to where it is received if that is
// registered, else into its slot. A payload that is only moved is announced: neither side copies
// it. A payload that may be reduced is gathered, because the receiver reduces it from its slot, and
// a read would only take longer.
//
// The immediate has three parts:
//
//   bit 31       a message lies in its slot; without it, the immediate only returns credits
//   bits 29-30   its form
//   bits 16-28   its number, counted from 0, modulo 2^13
//   bits 0-15    how many messages its sender has released so far, modulo 2^16
//
// A sender has a credit for each slot, and gets credits back with each message of the peer, by an
// empty write once half of the slots were released, and at once for an announced message, whose
// payload is borrowed until then. So neither end ever waits for the other's last credit. Each end
// has a RECV posted for everything that the peer can have outstanding, so a receiver is always
// ready.
//
// With several queue pairs, messages take turns on them. The immediate has the number of each;
// of credits that arrive out of order the larger number counts.
//
// A queue pair detects a dead peer when a request gets no answer. An end that only waits has no
// request: before it sleeps it sends an empty RDMA_WRITE, a probe, if it received nothing for a
// while.
//
// With several paths, the lane continues over the next one when a queue pair fails. Each end stops
// its queue pairs of the old path, waits until these have returned every RECV, so that nothing can
// be written any more, and advertises its slots on the new path. The advertisement lists the
// received messages. Other messages are sent again as plain ones; announced payloads that were not
// read yet are copied first. Each message that the peer has not released has a slot, so all are
// available.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "verbs/lane/lane_slots.h"
#include "verbs/registered_memory.h"
#include "verbs/verbs.h"

namespace hccl {

class LaneOverQueuePair final : public QueuedLane {
 public:
  // The meaning of a header's `kind`: for collectives, how a payload may travel; for transfers, the
  // kind of message, as all payloads may be announced.
  enum class Traffic { collectives, transfers };

  // The registrations of registered memory, by path.
  using Memories = std::vector<std::shared_ptr<RegisteredMemory>>;
  // Called when the lane continues over path `to`, with the reason.
  using PathObserver = std::function<void(size_t from, size_t to, const std::string& why)>;

  // The queue pairs of `slots` are connected. Throws InvalidVerb.
  LaneOverQueuePair(int peer, std::unique_ptr<LaneSlots> slots, Statistics& statistics);
  // Waits a moment for messages that have left to reach the peer.
  ~LaneOverQueuePair() override;

  // Payloads in these memories are not copied from `min_bytes` on; below, the copy costs less. The
  // queue pairs of a path are in its memory's protection domain. Before the first message.
  void set_registered(Memories memories, Traffic traffic, size_t min_bytes = 16384);
  // Before the first message.
  void set_observer(PathObserver observer) { observer_ = std::move(observer); }

  std::vector<int> descriptors() const override;
  void prepare_sleep(Sleep& sleep) override;
  uint64_t completed() const override;
  bool settled() const override { return flushed() && num_lent_ == 0; }
  bool delivered() const override;
  void tend(VerbsClock::time_point now) override;
  bool flush() override;
  void detach() override;
  bool abandon() override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

 protected:
  bool push(const Header& header, const std::byte* payload) override;
  uint64_t num_released() const override { return released_; }

 private:
  static constexpr size_t num_slots = LaneSlots::num_slots;
  using Way = LaneSlots::Way;
  using Path = LaneSlots::Path;
  using Use = RegisteredMemory::Use;
  enum Form : uint32_t { plain = 0, gathered = 1, announced = 2, answered = 3 };
  enum class Reading { no, under_way, ended };
  static constexpr uint32_t message_bit = uint32_t{1} << 31;
  static constexpr uint32_t form_shift = 29;
  static constexpr uint64_t read_id = ~uint64_t{2};  // no message has this number

  // A message whose payload stays in its owner's memory until then.
  struct Lent {
    uint64_t number = 0;  // as post_send returned it; 0: none
    const std::byte* payload = nullptr;
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

  Path& path() { return slots_->paths()[path_]; }
  const Path& path() const { return slots_->paths()[path_]; }
  Way& way_of(uint64_t number) { return path().ways[(number - 1) % path().ways.size()]; }
  const Way& way_of(uint64_t number) const {
    return path().ways[(number - 1) % path().ways.size()];
  }
  // The path in use and the later ones. Messages of a path that was left come too late.
  std::span<Path> usable_paths() { return std::span(slots_->paths()).subspan(path_); }
  // Whether messages can be sent: both ends use the path, and this end is not leaving it.
  bool is_open() const { return path().is_complete() && !is_leaving_; }
  void poll();
  void poll(Path& polled);
  void take(Path& polled, Way& way, const Completion& completion);
  void take_failure(Path& polled, Way& way, const Completion& completion);
  void take_immediate(uint32_t imm, size_t length);
  void fail(std::string text) {
    if (failure_.empty()) failure_ = std::move(text);
  }
  void throw_if_failed() const;
  bool has_ended(uint64_t number) const { return way_of(number).ended >= number; }
  bool has_ended_all() const;
  bool has_room() const;
  bool must_signal(uint64_t number) const;
  void write(Way& way, uint64_t number, std::span<const ScatterGather> pieces, uint32_t flags,
             uint32_t imm);
  void write_credits(Way& way);
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

  static void stop(Path& stopped);
  void post(Way& way, const SendRequest& request);
  void post_recv(Way& way);
  void refuse(const std::string& why);

  // lane_paths.cc: from one path to the next.
  void go_on();
  std::optional<size_t> next_path() const;
  void leave();
  bool is_emptied() const;
  void arrive();
  void forget_unread();
  LaneSlots::Progress progress() const;
  void resume();
  void send_again(uint64_t number);
  void parse_again();

  const std::unique_ptr<LaneSlots> slots_;
  Memories memories_;  // none: everything is copied
  PathObserver observer_;
  Traffic traffic_ = Traffic::collectives;
  size_t min_bytes_ = 0;
  std::string failure_;

  // Messages, counted from the first one.
  uint64_t sent_ = 0;
  uint64_t credited_ = 0;  // of these, whose slot at the peer is free again
  uint64_t arrived_ = 0;   // all up to this one, and some after it
  uint64_t released_ = 0;
  uint64_t returned_ = 0;    // of these, what the peer knows
  bool is_awaited_ = false;  // the peer waits for the release of the latest of these

  Form sent_forms_[num_slots] = {};  // by slot, as what follows
  Lent lent_[num_slots];
  int num_lent_ = 0;
  Reply asked_;  // where the peer writes one of its messages

  // Of what arrived, by slot.
  bool is_here_[num_slots] = {};
  size_t lengths_[num_slots] = {};
  Form forms_[num_slots] = {};
  // A copy of the peeked message, because the peer can overwrite its slot.
  Header header_;
  bool is_awaited_again_ = false;  // it was announced over a path that failed
  Note note_;
  Form form_ = plain;
  bool peeked_ = false;
  const std::byte* payload_ = nullptr;  // where it is whole
  Reading reading_ = Reading::no;
  std::shared_ptr<const void> read_hold_;
  Reply reply_;  // where one of our next messages goes

  size_t path_ = 0;
  size_t wanted_path_ = 0;   // the peer has gone on to it
  bool is_leaving_ = false;  // its queue pairs are stopped, and may not be empty yet
  bool is_resumed_ = true;   // what the peer lacked was sent over this path
  VerbsClock::time_point left_at_{};
  std::string why_left_;
  bool looks_at_all_ = false;  // the next poll() also checks unused paths

  bool is_starved_ = false;  // since the last sleep a caller found no message or no room
  bool is_probing_ = false;
  size_t num_probes_ = 0;
  uint64_t heard_ = 0;     // completions
  uint64_t heard_at_ = 0;  // of these, at the last check
  VerbsClock::time_point silent_since_ = VerbsClock::now();
};

}  // namespace hccl
