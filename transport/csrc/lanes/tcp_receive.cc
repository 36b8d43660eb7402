// The receiving half of TcpLane: the expected message from whichever connection has it.
#include <cstring>

#include "lanes/tcp.h"

namespace hccl {

namespace {

// When the peer is told what arrived, if no message of ours carries the news before: such that its
// window and its copies never fill up with what we have long taken.
constexpr uint64_t messages_per_ack = 32;
constexpr uint64_t large_per_ack = SendWindow::max_detached / 2;
// Turns without the expected message until others that came too early make room behind them.
constexpr int fruitless_before_stash = 2;

}  // namespace

// The next message on this connection that has not come yet. What is for the lane itself, and what
// came already, is dealt with on the way.
const Frame* TcpLane::head_of(size_t i) {
  Path& path = *paths_[i];
  try {
    while (const Frame* frame = path.head()) {
      if (frame->acknowledged > window_.posted()) {
        throw StreamError("it acknowledged what was never sent", false);
      }
      if (frame->acknowledged > peer_has_) {
        peer_has_ = frame->acknowledged;
        release_acknowledged();
      }
      if (frame->kind == Frame::data) {
        if (frame->sequence >= expected() + max_unacknowledged) {
          throw StreamError("a message from far ahead", false);
        }
        if (is_news(*frame)) return frame;
        if (!path.skip()) return nullptr;
      }
      if (frame->kind != Frame::ack) ack_due_ = true;
      recycle(path.pop());
    }
  } catch (const StreamError& error) {
    lose(i, error.what(), error.by_peer);
  }
  return nullptr;
}

bool TcpLane::is_news(const Frame& frame) const {
  return frame.sequence >= expected() && !has_stashed(frame.sequence);
}

void TcpLane::poll() {
  for (size_t i = 0; i < paths_.size(); ++i) head_of(i);
}

const Header* TcpLane::peek() {
  if (current_ != nowhere) return &header_;
  if (has_stashed(expected())) {
    header_ = stashed(expected()).header;
    current_ = in_stash;
    complete_ = false;
    lent_ = nullptr;
    return &header_;
  }
  polled_ = true;
  for (size_t i = 0; i < paths_.size(); ++i) {
    size_t path = (last_path_ + i) % paths_.size();
    const Frame* frame = head_of(path);
    if (frame == nullptr || frame->sequence != expected()) continue;
    header_ = frame->header;
    current_ = last_path_ = path;
    complete_ = false;
    lent_ = nullptr;
    num_fruitless_ = 0;
    return &header_;
  }
  if (ack_due_) send_ack();
  if (several() && ++num_fruitless_ >= fruitless_before_stash) stash_heads();
  throw_if_dead();
  return nullptr;
}

const std::byte* TcpLane::lend() {
  if (lent_ != nullptr) return lent_;
  if (current_ == in_stash) return stashed(expected()).payload.get();
  size_t path = current_;
  const std::byte* payload = nullptr;
  Path::Buffer spare = take_spare();
  try {
    payload = paths_[path]->lend(spare);
    complete_ = payload != nullptr;
    lent_ = payload;
  } catch (const StreamError& error) {
    lose(path, error.what(), error.by_peer);
  }
  recycle(std::move(spare));
  if (payload == nullptr && several()) stash_heads();
  return payload;
}

bool TcpLane::receive(std::byte* destination) {
  const std::byte* here = current_ == in_stash ? stashed(expected()).payload.get() : lent_;
  if (here != nullptr) {
    std::memcpy(destination, here, header_.length);
    return true;
  }
  size_t path = current_;
  try {
    complete_ = paths_[path]->receive(destination);
  } catch (const StreamError& error) {
    lose(path, error.what(), error.by_peer);
    return false;
  }
  if (!complete_ && several()) stash_heads();
  return complete_;
}

void TcpLane::release() {
  if (current_ == in_stash) {
    Stashed& entry = stashed(expected());
    recycle(std::move(entry.payload));
    entry.there = false;
    --num_stashed_;
  } else if (current_ == kept) {
    kept_ = nullptr;
  } else {
    recycle(paths_[current_]->pop());
  }
  current_ = nowhere;
  ++taken_;
  ++num_unacknowledged_;
  if (header_.length > small_bytes_) {
    ++num_large_;
  } else {
    small_received_ += header_.length;
  }
  if (num_large_ >= large_per_ack || num_unacknowledged_ >= messages_per_ack ||
      small_received_ >= SendWindow::num_small * small_bytes_ / 2) {
    send_ack();
  }
}

// ---------------------------------------------------------------- what came too early

bool TcpLane::has_stashed(uint64_t number) const {
  return num_stashed_ > 0 && stash_[number & (max_unacknowledged - 1)].there;
}

void TcpLane::stash_heads() {
  for (size_t i = 0; i < paths_.size() && num_stashed_ < max_stashed; ++i) {
    if (i == current_) continue;
    const Frame* frame = head_of(i);
    if (frame != nullptr && frame->sequence > expected()) stash(i);
  }
}

void TcpLane::stash(size_t i) {
  Path& path = *paths_[i];
  Path::Buffer spare = take_spare();
  try {
    bool whole = path.assemble(spare);
    recycle(std::move(spare));
    if (!whole) return;
  } catch (const StreamError& error) {
    return lose(i, error.what(), error.by_peer);
  }
  const Frame& frame = *path.head();
  Stashed& entry = stashed(frame.sequence);
  entry.header = frame.header;
  entry.there = true;
  ++num_stashed_;
  entry.payload = path.pop();
}

Path::Buffer TcpLane::take_spare() {
  if (spare_.empty()) return nullptr;
  Path::Buffer spare = std::move(spare_.back());
  spare_.pop_back();
  return spare;
}

void TcpLane::recycle(Path::Buffer buffer) {
  if (buffer) spare_.push_back(std::move(buffer));
}

}  // namespace hccl
