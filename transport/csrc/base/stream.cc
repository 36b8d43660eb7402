#include "base/stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/fork_copies.h"

namespace hccl {

namespace {

// A lost packet can explain a shorter silence.
constexpr double shortest_silence_s = 0.5;

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

SocketStream::SocketStream(Descriptor socket) {
  give_up_in_children(socket.get());
  socket_.emplace(std::move(socket));
}

void SocketStream::close() {
  keep_in_children(fd());
  socket_.reset();
}

// A send gets EPIPE after the other end has closed the connection. The kernel reports a reset once,
// and the end of the stream from then on.
void SocketStream::fail(const char* call, int error) {
  bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  if (error != EPIPE) end_ = is_silent ? StreamEnd::silent : StreamEnd::reset;
  throw StreamError(std::string(call) + ": " + std::strerror(error), end_);
}

size_t SocketStream::send(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  for (;;) {
    ssize_t sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) fail("send", errno);
  }
}

size_t SocketStream::receive(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  for (;;) {
    // recv is cheaper for a single part.
    ssize_t got = parts.size() == 1 ? recv(fd(), parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT)
                                    : recvmsg(fd(), &message, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) throw StreamError("the connection was closed", end_);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) fail("recv", errno);
  }
}

bool has_hung_up(int fd) {
  if (fd < 0) return true;
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool was_closed(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;  // no TCP
  return info.tcpi_state != TCP_CLOSE;
}

size_t unconfirmed_bytes(int fd) {
  int bytes = 0;
  return fd >= 0 && ioctl(fd, SIOCOUTQ, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
}

double unanswered_s(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  int idle_s = 0;  // before the kernel sends the first probe
  size = sizeof idle_s;
  if (info.tcpi_probes > 0) getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &size);
  bool asked = (info.tcpi_unacked > 0 && info.tcpi_retransmits > 0) || info.tcpi_probes > 0;
  double seconds = info.tcpi_last_ack_recv / 1000.0;
  return asked && seconds >= idle_s + shortest_silence_s ? seconds : 0;
}

}  // namespace hccl
