// A lane over queue pairs continues over its next path when one fails.
#include <algorithm>
#include <cstring>
#include <utility>

#include "verbs/lane/lane_over_queue_pair.h"

namespace hccl {

namespace {

// Time for stopped queue pairs to return their RECVs. A lost device returns none.
constexpr auto draining_time = std::chrono::seconds(1);

}  // namespace

void LaneOverQueuePair::go_on() {
  if (!failure_.empty()) return;
  if (!is_leaving_ && (path().has_failed || wanted_path_ > path_)) leave();
  if (is_leaving_) {
    bool is_late = VerbsClock::now() >= left_at_ + draining_time;
    if (!is_emptied() && !is_late) return;
    if (!is_emptied()) {
      for (Way& way : path().ways) way.pair->close();
    }
    arrive();
  }
  if (!is_resumed_ && is_open()) resume();
}

// The first path after the one in use that the peer has not left and that has not failed.
std::optional<size_t> LaneOverQueuePair::next_path() const {
  const std::vector<Path>& paths = slots_->paths();
  for (size_t next = std::max(path_ + 1, wanted_path_); next < paths.size(); ++next) {
    if (!paths[next].has_failed) return next;
  }
  return std::nullopt;
}

void LaneOverQueuePair::leave() {
  // Later errors of its stopped queue pairs are not the cause.
  if (!std::exchange(path().has_failed, true)) why_left_ = "the peer has left it";
  if (!next_path()) return fail(why_left_);
  is_leaving_ = true;
  left_at_ = VerbsClock::now();
  stop(path());
}

// Whether neither end's requests can touch memory through the stopped queue pairs any more: RECVs
// come back in order, behind what was received.
bool LaneOverQueuePair::is_emptied() const {
  auto is_empty = [](const Way& way) { return way.num_recvs == 0; };
  return reading_ != Reading::under_way &&
         std::all_of(path().ways.begin(), path().ways.end(), is_empty);
}

void LaneOverQueuePair::arrive() {
  std::optional<size_t> next = next_path();
  is_leaving_ = false;
  if (!next) return fail(why_left_);
  size_t from = std::exchange(path_, *next);
  if (observer_) observer_(from, path_, why_left_);
  why_left_.clear();
  is_resumed_ = is_probing_ = false;
  forget_unread();
  // The keys of the failed path are invalid.
  reply_ = {};
  note_.reply = 0;
  returned_ = released_;
  is_awaited_ = false;
  silent_since_ = VerbsClock::now();
  try {
    slots_->advertise(path(), progress());
  } catch (const InvalidVerb& refused) {
    refuse(refused.what());
  }
}

// Keeps complete messages. The peer repeats an announced message whose payload was not read, with
// the payload.
void LaneOverQueuePair::forget_unread() {
  arrived_ = released_;
  for (uint64_t number = released_; number < released_ + num_slots; ++number) {
    size_t slot = number % num_slots;
    bool is_read = peeked_ && number == released_ && reading_ == Reading::ended;
    if (forms_[slot] == announced && !is_read) is_here_[slot] = false;
    if (!is_here_[slot]) continue;
    if (number == arrived_) ++arrived_;
    // Its note requests an answer by a key of the failed path.
    if (forms_[slot] == gathered) std::memset(slots_->in(number) + sizeof header_, 0, sizeof note_);
  }
  is_awaited_again_ = peeked_ && !is_here_[released_ % num_slots];
  if (!is_awaited_again_) return;
  reading_ = Reading::no;
  read_hold_.reset();
}

LaneSlots::Progress LaneOverQueuePair::progress() const {
  LaneSlots::Progress progress{.released = released_};
  for (size_t i = 0; i < num_slots; ++i) {
    if (is_here_[(released_ + i) % num_slots]) progress.whole |= uint64_t{1} << i;
  }
  return progress;
}

// Both ends now use the path: messages that the peer lacks are sent again, in order.
void LaneOverQueuePair::resume() {
  const LaneSlots::Progress& theirs = path().theirs;
  is_resumed_ = true;
  bool is_of_now = theirs.released <= sent_ && sent_ - theirs.released <= num_slots;
  if (!is_of_now || theirs.whole >> (sent_ - theirs.released) != 0) {
    return fail("it says that it has messages that were never sent");
  }
  // Newer credits may have overtaken the last advertisement.
  credited_ = std::max(credited_, theirs.released);
  for (uint64_t number = theirs.released + 1; number <= sent_ && failure_.empty(); ++number) {
    if ((theirs.whole >> (number - theirs.released - 1) & 1) == 0) send_again(number);
  }
  if (sent_ == 0 || !failure_.empty()) return;
  // When they complete, all messages have, even ones that were not sent again.
  for (Way& way : path().ways) write_credits(way);
}

// Always as a plain message, because keys of the failed path are invalid. Its slot stays this
// side's until the peer releases the message.
void LaneOverQueuePair::send_again(uint64_t number) {
  size_t index = (number - 1) % num_slots;
  std::byte* slot = slots_->out(number - 1);
  Header header;
  std::memcpy(&header, slot, sizeof header);
  Lent& lent = lent_[index];
  const std::byte* payload = slot + sizeof header;
  if (lent.number != 0) {
    payload = lent.payload;
  } else if (sent_forms_[index] == answered) {
    payload += sizeof(Note);
  } else if (sent_forms_[index] != plain) {
    // The peer's device has confirmed it, and its owner has reused the memory.
    return fail("a message that its device had confirmed did not come");
  }
  if (header.length > 0) std::memmove(slot + sizeof header, payload, header.length);
  if (std::exchange(lent, {}).number != 0) --num_lent_;
  sent_forms_[index] = plain;
  Way& way = way_of(number);
  ScatterGather piece{reinterpret_cast<uint64_t>(slot),
                      static_cast<uint32_t>(sizeof header + header.length), way.lkey};
  write(way, number, {&piece, 1}, 0, message_bit | plain << form_shift);
  device_.retries.add(1);
}

// The peeked message was received again, unchanged.
void LaneOverQueuePair::parse_again() {
  Header before = header_;
  parse();
  if (std::memcmp(&before, &header_, sizeof before) != 0) throw_malformed();
  is_awaited_again_ = false;
}

}  // namespace hccl
