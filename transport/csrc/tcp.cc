#include "tcp.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hccl {

TcpLane::TcpLane(int peer, Descriptor socket, size_t slot_bytes, Statistics& statistics)
    : QueuedLane(peer, slot_bytes, statistics), socket_(std::move(socket)) {}

void TcpLane::fail(const char* call, int error) {
  throw LaneError(peer(), error ? std::string(call) + ": " + std::strerror(error)
                                : std::string("the connection was closed"));
}

bool TcpLane::push(const Header& header, const std::byte* payload, size_t& offset) {
  const size_t total = sizeof header + header.length;
  while (offset < total) {
    iovec parts[2];
    int num_parts = 0;
    if (offset < sizeof header) {
      auto* begin = reinterpret_cast<const char*>(&header) + offset;
      parts[num_parts++] = {const_cast<char*>(begin), sizeof header - offset};
    }
    size_t sent_payload = offset > sizeof header ? offset - sizeof header : 0;
    if (sent_payload < header.length) {
      parts[num_parts++] = {const_cast<std::byte*>(payload) + sent_payload,
                            header.length - sent_payload};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(num_parts);
    ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      if (errno == EINTR) continue;
      fail("send", errno);
    }
    offset += static_cast<size_t>(sent);
  }
  statistics_.tcp_messages.add(1);
  statistics_.tcp_bytes.add(header.length);
  return true;
}

// Returns 0 when nothing is there now.
size_t TcpLane::read_some(std::byte* destination, size_t size) {
  for (;;) {
    ssize_t got = recv(fd(), destination, size, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) fail("recv", 0);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) fail("recv", errno);
  }
}

const Header* TcpLane::peek() {
  if (has_header_) return &header_;
  if (ahead_end_ - ahead_begin_ < sizeof header_) {
    std::memmove(ahead_, ahead_ + ahead_begin_, ahead_end_ - ahead_begin_);
    ahead_end_ -= ahead_begin_;
    ahead_begin_ = 0;
    ahead_end_ += read_some(ahead_ + ahead_end_, sizeof ahead_ - ahead_end_);
    if (ahead_end_ < sizeof header_) return nullptr;
  }
  std::memcpy(&header_, ahead_ + ahead_begin_, sizeof header_);
  if (header_.length > slot_bytes_) throw LaneError(peer(), "a frame longer than a slot");
  ahead_begin_ += sizeof header_;
  has_header_ = true;
  received_ = 0;
  return &header_;
}

bool TcpLane::receive(std::byte* destination) {
  size_t from_ahead = std::min<size_t>(ahead_end_ - ahead_begin_, header_.length - received_);
  if (from_ahead) {
    std::memcpy(destination + received_, ahead_ + ahead_begin_, from_ahead);
    ahead_begin_ += from_ahead;
    received_ += from_ahead;
  }
  while (received_ < header_.length) {
    size_t got = read_some(destination + received_, header_.length - received_);
    if (got == 0) return false;
    received_ += got;
  }
  return true;
}

const std::byte* TcpLane::lend() {
  // Already read ahead, whole: lend it where it lies.
  if (received_ == 0 && ahead_end_ - ahead_begin_ >= header_.length) return ahead_ + ahead_begin_;
  if (slot_.empty()) slot_.resize(slot_bytes_);
  return receive(slot_.data()) ? slot_.data() : nullptr;
}

void TcpLane::release() {
  if (received_ == 0) ahead_begin_ += header_.length;
  has_header_ = false;
}

}  // namespace hccl
