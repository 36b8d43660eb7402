// The sending half of LaneOverQueuePair, and its completions. lane_receive.cc has the receiving
// half, lane_paths.cc the failure of a device.
#include "verbs/lane/lane_over_queue_pair.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace hccl {

namespace {

constexpr uint32_t form_mask = 3;
constexpr uint32_t number_shift = 16;
constexpr uint32_t number_mask = 0x1fff;
constexpr uint32_t credit_mask = 0xffff;
constexpr size_t completions_per_poll = 16;
constexpr auto closing_time = std::chrono::milliseconds(500);
constexpr int longest_sleep_ms = 10;
constexpr auto probe_period = std::chrono::seconds(1);
// No message has these numbers.
constexpr uint64_t probe_id = std::numeric_limits<uint64_t>::max();
constexpr uint64_t other_id = probe_id - 1;
// Header::kind of a collective's message whose source may be overwritten before it is received.
constexpr uint16_t always_copied = 0xffff;

// Whether this failure of a queue pair is caused by its path, not by the peer.
bool is_of_path(Status status) {
  switch (status) {
    case Status::flushed:
    case Status::remote_operation_error:
    case Status::retry_exceeded:
    case Status::local_operation_error:
    case Status::device_error: return true;
    case Status::success:
    case Status::local_length_error:
    case Status::local_protection_error:
    case Status::remote_invalid_request_error:
    case Status::remote_access_error:
    case Status::rnr_retry_exceeded: return false;
  }
  return false;
}

}  // namespace

LaneOverQueuePair::LaneOverQueuePair(int peer, std::unique_ptr<LaneSlots> slots,
                                     Statistics& statistics)
    : QueuedLane(peer, slots->slot_bytes(), statistics, statistics.verbs),
      slots_(std::move(slots)) {
  slots_->advertise(path(), {});
}

void LaneOverQueuePair::set_registered(Memories memories, Traffic traffic, size_t min_bytes) {
  memories_ = std::move(memories);
  traffic_ = traffic;
  min_bytes_ = std::max<size_t>(min_bytes, 1);
}

LaneOverQueuePair::~LaneOverQueuePair() {
  try {
    // Empty writes are the last to end.
    if (is_open() && !has_ended_all()) {
      for (Way& way : path().ways) write_credits(way);
    }
    auto until = VerbsClock::now() + closing_time;
    while (!has_ended_all() && VerbsClock::now() < until) {
      Sleep sleep(Sleeper::caller);
      sleep.limit(until);
      bool came = false;
      for (Way& way : path().ways) came |= way.pair->prepare_sleep(sleep);
      if (!came) sleep.wait(longest_sleep_ms);
      looks_at_all_ = true;
      poll();
    }
  } catch (const std::exception&) {
    // A queue pair has failed: nothing more can reach the peer.
  }
  for (Path& each : slots_->paths()) {
    for (Way& way : each.ways) {
      try {
        way.pair->close();  // the slots are freed next
      } catch (const LaneInterrupted&) {
        // A destructor cannot raise it.
      }
    }
  }
}

std::vector<int> LaneOverQueuePair::descriptors() const {
  std::vector<int> all;
  for (const Path& each : slots_->paths()) {
    for (const Way& way : each.ways) {
      for (int fd : way.pair->descriptors()) all.push_back(fd);
    }
  }
  return all;
}

void LaneOverQueuePair::prepare_sleep(Sleep& sleep) {
  if (std::exchange(is_starved_, false)) probe();
  for (Path& each : usable_paths()) {
    for (Way& way : each.ways) way.pair->prepare_sleep(sleep);
  }
  looks_at_all_ = true;
}

void LaneOverQueuePair::probe() {
  auto now = VerbsClock::now();
  if (std::exchange(heard_at_, heard_) != heard_) silent_since_ = now;
  if (now < silent_since_ + probe_period) return;
  if (is_probing_ || !is_open() || !failure_.empty()) return;
  Way& way = path().ways[num_probes_ % path().ways.size()];
  try {
    is_probing_ = true;
    post(way, {.wr_id = probe_id,
               .opcode = Opcode::rdma_write,
               .rkey = way.their_rkey,
               .remote_address = slots_->their_address()});
    ++num_probes_;
  } catch (const QueueFull&) {
    is_probing_ = false;  // the requests that fill it serve as probes
  }
}

void LaneOverQueuePair::throw_if_failed() const {
  if (!failure_.empty()) throw LaneError(peer(), failure_);
}

void LaneOverQueuePair::poll() {
  // A peer that has switched paths advertises it on the new one; check before an end that waits
  // sleeps.
  if (std::exchange(looks_at_all_, false)) {
    for (Path& each : usable_paths()) poll(each);
    // Without another path, wait for this one.
    std::string trouble = next_path() ? path().ways[0].pair->trouble() : std::string();
    if (!trouble.empty()) refuse(trouble);
  } else {
    poll(path());
  }
  go_on();
  take_back();
  return_credits();
}

void LaneOverQueuePair::poll(Path& polled) {
  Completion completions[completions_per_poll];
  for (Way& way : polled.ways) {
    size_t count;
    do {
      count = way.pair->poll(completions);
      for (size_t i = 0; i < count; ++i) take(polled, way, completions[i]);
    } while (count == completions_per_poll);
  }
}

void LaneOverQueuePair::take(Path& polled, Way& way, const Completion& completion) {
  ++heard_;
  bool is_recv = completion.opcode >= Opcode::recv;
  if (is_recv) --way.num_recvs;
  if (completion.status != Status::success) {
    take_failure(polled, way, completion);
  } else if (completion.opcode == Opcode::recv) {
    std::string problem = slots_->take_advertisement(polled, way, completion.byte_len);
    if (!problem.empty()) fail(std::move(problem));
    wanted_path_ = std::max(wanted_path_, static_cast<size_t>(&polled - slots_->paths().data()));
  } else if (is_recv) {
    // A stopped queue pair still delivers earlier messages.
    if (&polled == &path() && !is_leaving_ && !polled.has_failed) post_recv(way);
    take_immediate(completion.imm, completion.byte_len);
  } else if (completion.wr_id == probe_id) {
    is_probing_ = false;
  } else if (completion.wr_id == read_id) {
    reading_ = Reading::ended;
  } else if (completion.wr_id != other_id) {
    way.ended = std::max(way.ended, completion.wr_id);
  }
}

void LaneOverQueuePair::take_failure(Path& polled, Way& way, const Completion& completion) {
  if (completion.opcode == Opcode::rdma_read && completion.wr_id == read_id) reading_ = Reading::no;
  if (std::exchange(polled.has_failed, true) || &polled != &path()) return;
  why_left_ = "its queue pair failed with status " +
              std::to_string(static_cast<int>(completion.status)) + ": " + way.pair->reason();
  // An error of the peer would repeat itself on another path.
  if (!is_of_path(completion.status)) fail(why_left_);
}

void LaneOverQueuePair::take_immediate(uint32_t imm, size_t length) {
  auto credits = static_cast<int16_t>((imm & credit_mask) - credited_);
  if (credits > 0) credited_ += static_cast<uint64_t>(credits);
  if (credited_ > sent_) return fail("it returned credits for messages that were never sent");
  if (!(imm & message_bit)) return;
  uint64_t ahead = ((imm >> number_shift) - released_) & number_mask;
  size_t slot = (released_ + ahead) % num_slots;
  if (ahead >= num_slots) return fail("it sent a message without a credit");
  if (std::exchange(is_here_[slot], true)) return fail("it sent a message twice");
  lengths_[slot] = length;
  forms_[slot] = static_cast<Form>(imm >> form_shift & form_mask);
  while (arrived_ < released_ + num_slots && is_here_[arrived_ % num_slots]) ++arrived_;
}

// Whether all messages have left, or never will.
bool LaneOverQueuePair::has_ended_all() const {
  if (!failure_.empty()) return true;
  if (is_leaving_ || !is_resumed_) return false;
  uint64_t oldest = sent_ > num_slots ? sent_ - num_slots : 0;
  for (uint64_t number = sent_; number > oldest; --number) {
    if (!has_ended(number)) return false;
  }
  return true;
}

// With one path, the destructor waits for the last messages.
bool LaneOverQueuePair::delivered() const { return slots_->paths().size() == 1 || has_ended_all(); }

void LaneOverQueuePair::tend(VerbsClock::time_point) {
  if (slots_->paths().size() == 1 || !failure_.empty()) return;
  looks_at_all_ = true;
  poll();
}

bool LaneOverQueuePair::has_room() const {
  return is_open() && is_resumed_ && sent_ - credited_ < num_slots &&
         (sent_ < slots_->num_out() || has_ended(sent_ + 1 - slots_->num_out()));
}

// A completion means that all earlier ones on the same queue pair have left, so some suffice. With
// another path each is needed: the message could still be sent again.
bool LaneOverQueuePair::must_signal(uint64_t number) const {
  if (slots_->paths().size() > 1) return true;
  size_t num_ways = path().ways.size();
  size_t period = std::max<size_t>(slots_->num_out() / 2 / num_ways, 1);
  return ((number - 1) / num_ways + 1) % period == 0;
}

// With send_signaled, its completion means that all messages up to `number` on `way` have left.
void LaneOverQueuePair::write(Way& way, uint64_t number, std::span<const ScatterGather> pieces,
                              uint32_t flags, uint32_t imm) {
  SendRequest request{.wr_id = number,
                      .opcode = Opcode::rdma_write_with_imm,
                      .flags = flags,
                      .imm = imm | static_cast<uint32_t>(released_ & credit_mask),
                      .rkey = way.their_rkey,
                      .pieces = pieces};
  if (!pieces.empty()) {
    request.imm |= ((number - 1) & number_mask) << number_shift;
    request.remote_address = slots_->their_address() + (number - 1) % num_slots * slots_->stride();
    bool is_small = pieces.size() == 1 && pieces[0].length <= way.pair->max_inline();
    if (is_small) request.flags |= send_inline;
  }
  post(way, request);
  returned_ = released_;
  is_awaited_ = false;
}

// A device that is gone may refuse requests; QueueFull is the caller's.
void LaneOverQueuePair::post(Way& way, const SendRequest& request) {
  try {
    way.pair->post_send(request);
  } catch (const InvalidVerb& refused) {
    refuse(refused.what());
  }
}

void LaneOverQueuePair::post_recv(Way& way) {
  try {
    way.pair->post_recv({0, {}});
    ++way.num_recvs;
  } catch (const InvalidVerb& refused) {
    refuse(refused.what());
  }
}

void LaneOverQueuePair::refuse(const std::string& why) {
  if (!std::exchange(path().has_failed, true)) why_left_ = why;
}

// Completes after all earlier messages on `way`.
void LaneOverQueuePair::write_credits(Way& way) { write(way, sent_, {}, send_signaled, 0); }

std::optional<RegisteredMemory::Use> LaneOverQueuePair::registered(const std::byte* payload,
                                                                   size_t length) {
  if (path_ >= memories_.size() || length < min_bytes_ || is_detached()) return std::nullopt;
  return memories_[path_]->find(payload, length);
}

bool LaneOverQueuePair::awaits_reply(const Header& header) const {
  return reply_.number == sent_ + 1 && reply_.num_bytes == header.length && header.length > 0;
}

Note LaneOverQueuePair::note_of(const Header& header, const Use& source) {
  Note note{.address = source.address, .rkey = source.rkey};
  uint64_t number = num_released_when_posted() + header.kind;
  if (header.wants_reply && number > released_ && asked_.number <= released_) {
    note.reply = number;
    asked_ = {note.reply, source.address, header.length, source.rkey, source.hold};
  }
  return note;
}

// The queue pair carries it before the header that follows.
void LaneOverQueuePair::write_answer(const std::byte* payload, const std::optional<Use>& source) {
  Way& way = way_of(sent_ + 1);
  std::byte* copied = slots_->out(sent_) + sizeof(Header) + sizeof(Note);
  ScatterGather piece{reinterpret_cast<uint64_t>(copied), static_cast<uint32_t>(reply_.num_bytes),
                      way.lkey};
  if (source) {
    piece.address = source->address;
    piece.lkey = source->lkey;
  } else {
    std::memcpy(copied, payload, reply_.num_bytes);
    statistics_.verbs.copies.add(1);
  }
  post(way, {.wr_id = other_id,
             .opcode = Opcode::rdma_write,
             .flags = 0,
             .rkey = reply_.rkey,
             .remote_address = reply_.address,
             .pieces = {&piece, 1}});
  reply_ = {};
}

bool LaneOverQueuePair::push(const Header& header, const std::byte* payload) {
  if (!has_room()) poll();
  throw_if_failed();
  is_starved_ = !has_room();
  if (is_starved_) return false;
  std::optional<Use> source = registered(payload, header.length);
  bool may_announce =
      traffic_ == Traffic::transfers || (header.is_only_moved != 0 && header.kind != always_copied);
  Form form = awaits_reply(header) ? answered
              : !source            ? plain
              : may_announce       ? announced
                                   : gathered;
  Way& way = way_of(sent_ + 1);
  std::byte* slot = slots_->out(sent_);
  ScatterGather pieces[2] = {{reinterpret_cast<uint64_t>(slot), sizeof header, way.lkey}, {}};
  size_t num_pieces = 1;
  std::memcpy(slot, &header, sizeof header);
  if (form == answered) {
    write_answer(payload, source);
  } else if (source) {
    Note note = note_of(header, *source);
    std::memcpy(slot + sizeof header, &note, sizeof note);
    pieces[0].length += sizeof note;
    if (form == gathered) pieces[num_pieces++] = {source->address, header.length, source->lkey};
  } else if (header.length > 0) {
    std::memcpy(slot + sizeof header, payload, header.length);
    pieces[0].length += header.length;
    statistics_.verbs.copies.add(1);
  }
  sent_forms_[sent_ % num_slots] = form;
  ++sent_;
  uint32_t flags = must_signal(sent_) ? send_signaled : 0;
  if (source) {
    bool until_released = form == announced;
    if (!until_released) flags = send_signaled;
    lent_[(sent_ - 1) % num_slots] = {QueuedLane::completed() + 1, payload, until_released,
                                      std::move(source->hold)};
    ++num_lent_;
    statistics_.announced.add(1);
  }
  write(way, sent_, {pieces, num_pieces}, flags, message_bit | form << form_shift);
  device_.messages.add(1);
  device_.bytes.add(header.length);
  return true;
}

// Releases lent payloads that were returned.
void LaneOverQueuePair::take_back() {
  if (num_lent_ == 0) return;
  uint64_t oldest = sent_ > num_slots ? sent_ - num_slots : 0;
  for (uint64_t number = sent_; number > oldest; --number) {
    Lent& lent = lent_[(number - 1) % num_slots];
    if (lent.number == 0) continue;
    if (lent.until_released ? credited_ < number : !has_ended(number)) continue;
    lent = {};
    --num_lent_;
  }
}

uint64_t LaneOverQueuePair::completed() const {
  uint64_t completed = QueuedLane::completed();
  if (num_lent_ == 0) return completed;
  for (const Lent& lent : lent_) {
    if (lent.number != 0) completed = std::min(completed, lent.number - 1);
  }
  return completed;
}

bool LaneOverQueuePair::flush() {
  int before = num_lent_;
  if (before > 0) {
    poll();
    throw_if_failed();
    is_starved_ = true;
  }
  return QueuedLane::flush() || num_lent_ < before;
}

void LaneOverQueuePair::detach() {
  // A lent payload cannot be copied any more; it is returned without the caller.
  if (num_lent_ > 0) return poll();
  QueuedLane::detach();
}

bool LaneOverQueuePair::abandon() {
  bool in_use = num_lent_ > 0 || asked_.number > released_ || reading_ == Reading::under_way;
  if (!in_use) return true;
  // Before the callers get their memory back: a peer must neither read later contents as the
  // payload, nor write to it.
  fail("its communicator failed while memory was in use");
  for (Path& each : slots_->paths()) stop(each);
  for (Lent& lent : lent_) lent = {};
  num_lent_ = 0;
  asked_ = {};
  read_hold_.reset();
  return true;
}

// Soft-RoCE destroys a queue pair only when its messages have left, up to 50 s.
void LaneOverQueuePair::stop(Path& stopped) {
  for (Way& way : stopped.ways) {
    try {
      way.pair->stop();
    } catch (const std::exception&) {
      // It had already ended, or a signal handler interrupted it.
    }
  }
}

}  // namespace hccl
