// The receiving half of TcpLane: the expected message from whichever connection has it.
#include "base/copy.h"
#include "lanes/tcp.h"

namespace hccl {

namespace {

// Messages after which an acknowledgement is sent if none of our messages carries it before, so
// that the peer's window and copies never fill up with messages that we have taken.
constexpr uint64_t messages_per_ack = 32;
// Turns without the expected message until early messages are moved to the stash.
constexpr int fruitless_before_stash = 2;

}  // namespace

// The next new message on this connection. Acknowledgements, and messages already received on
// another connection, are consumed on the way.
const Frame* TcpLane::head_of(size_t i) {
  return reading(i, [this](Path& path) -> const Frame* {
    while (const Frame* frame = path.head()) {
      if (frame->acknowledged > window_.posted()) {
        throw StreamError("it acknowledged what was never sent", StreamEnd::given_up);
      }
      if (frame->acknowledged > peer_has_) {
        peer_has_ = frame->acknowledged;
        release_acknowledged();
      }
      if (frame->kind == Frame::data) {
        if (frame->sequence >= expected() + max_unacknowledged) {
          throw StreamError("a message from far ahead", StreamEnd::given_up);
        }
        bool is_news = frame->sequence >= expected() && !stashed(frame->sequence).there;
        if (is_news) return frame;
        if (!path.assemble()) return nullptr;
      }
      if (frame->kind != Frame::ack) ack_due_ = true;
      pool_.put(path.pop());
    }
    return nullptr;
  });
}

// The message to take next: on a path, or in the stash.
const Header* TcpLane::show(size_t where, const Header& header) {
  current_ = where;
  header_ = header;
  complete_ = false;
  lent_ = where == in_stash ? stashed(expected()).payload.get() : nullptr;
  return &header_;
}

const Header* TcpLane::peek() {
  if (current_ != nowhere) return &header_;
  if (stashed(expected()).there) return show(in_stash, stashed(expected()).header);
  polled_ = true;
  for (size_t i = 0; i < paths_.size(); ++i) {
    size_t path = (last_path_ + i) % paths_.size();
    const Frame* frame = head_of(path);
    if (frame == nullptr || frame->sequence != expected()) continue;
    last_path_ = path;
    num_fruitless_ = 0;
    return show(path, frame->header);
  }
  if (ack_due_) send_ack();
  if (several() && ++num_fruitless_ >= fruitless_before_stash) stash_heads();
  throw_if_dead();
  return nullptr;
}

const std::byte* TcpLane::lend() {
  if (lent_ != nullptr) return lent_;
  lent_ = reading(current_, [](Path& path) { return path.lend(); });
  complete_ = lent_ != nullptr;
  if (!complete_ && several()) stash_heads();
  return lent_;
}

bool TcpLane::receive(std::byte* destination) {
  if (lent_ != nullptr) {
    hccl::copy(destination, lent_, header_.length);
    return true;
  }
  complete_ = reading(current_, [=](Path& path) { return path.receive(destination); });
  if (!complete_ && several()) stash_heads();
  return complete_;
}

void TcpLane::release() {
  if (current_ == in_stash) {
    stashed(expected()).there = false;
    pool_.put(std::move(stashed(expected()).payload));
  } else {
    pool_.put(paths_[current_]->pop());
  }
  current_ = nowhere;
  ++taken_;
  ++num_unacknowledged_;
  if (header_.length > window_.small_bytes()) {
    ++num_large_;
  } else {
    small_received_ += header_.length;
  }
  if (num_large_ >= SendWindow::num_large_per_ack || num_unacknowledged_ >= messages_per_ack ||
      small_received_ >= SendWindow::num_small_per_ack * window_.small_bytes()) {
    send_ack();
  }
}

// True if any was complete.
bool TcpLane::stash_heads() {
  bool moved = false;
  for (size_t i = 0; i < paths_.size(); ++i) {
    const Frame* frame = i == current_ ? nullptr : head_of(i);
    if (frame == nullptr || (frame->sequence == expected() && current_ != nowhere)) continue;
    if (!reading(i, [](Path& path) { return path.assemble(); })) continue;
    stashed(frame->sequence) = {frame->header, paths_[i]->pop(), true};
    moved = true;
  }
  return moved;
}

void TcpLane::stash_current() {
  stashed(expected()) = {header_, paths_[current_]->give_away(), true};
  current_ = in_stash;
}

// Receives all that has arrived, bounded by the peer's window: this side cannot continue without an
// acknowledgement, which may be behind messages that cannot be released before.
void TcpLane::read_on() {
  if (current_ < in_stash) {
    if (lent_ == nullptr && !paths_[current_]->is_handed_out()) lend();
    if (current_ < in_stash && lent_ != nullptr) stash_current();
  }
  while (stash_heads()) {
  }
}

}  // namespace hccl
