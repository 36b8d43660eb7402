#include "control.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hccl {

void ControlLink::send(const ControlMessage& message) {
  // Nothing to do on failure: the peer is gone, and will be noticed as such.
  [[maybe_unused]] ssize_t sent =
      ::send(fd(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlLink::say_goodbye(uint64_t sequence) {
  ControlMessage message;
  message.sequence = sequence;
  send(message);
}

void ControlLink::report(const Failure& failure) {
  ControlMessage message;
  message.kind = ControlMessage::abort;
  message.failure_kind = static_cast<uint32_t>(failure.kind);
  message.rank = failure.rank;
  message.expected = failure.expected;
  message.received = failure.received;
  message.reporter = failure.reporter;
  size_t length = std::min(failure.text.size(), sizeof message.text);
  message.text_length = static_cast<uint32_t>(length);
  std::memcpy(message.text, failure.text.data(), length);
  send(message);
}

std::optional<Failure> ControlLink::receive() {
  std::optional<Failure> first;
  while (state_ == State::open) {
    char buffer[sizeof(ControlMessage)];
    ssize_t got = recv(fd(), buffer, sizeof buffer - partial_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      state_ = State::lost;
      break;
    }
    partial_.insert(partial_.end(), buffer, buffer + got);
    if (partial_.size() < sizeof(ControlMessage)) continue;
    ControlMessage message;
    std::memcpy(&message, partial_.data(), sizeof message);
    partial_.clear();
    std::optional<Failure> failure = handle(message);
    if (failure && !first) first = std::move(failure);
  }
  return first;
}

std::optional<Failure> ControlLink::handle(const ControlMessage& message) {
  if (message.magic != ControlMessage{}.magic) {
    state_ = State::lost;
    return std::nullopt;
  }
  if (message.kind == ControlMessage::goodbye) {
    state_ = State::left;
    last_sequence_ = message.sequence;
    return std::nullopt;
  }
  Failure failure;
  bool known = message.failure_kind > static_cast<uint32_t>(FailureKind::none) &&
               message.failure_kind <= static_cast<uint32_t>(FailureKind::internal);
  failure.kind = known ? static_cast<FailureKind>(message.failure_kind) : FailureKind::internal;
  failure.rank = message.rank;
  failure.expected = message.expected;
  failure.received = message.received;
  failure.reporter = message.reporter;
  failure.text.assign(message.text, std::min<size_t>(message.text_length, sizeof message.text));
  return failure;
}

}  // namespace hccl
