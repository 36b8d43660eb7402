#include "engine/connection/control_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/connection/peer_process.h"

namespace hccl {

namespace {

// More than a connection ever repeats: a peer that reads none of it counts as cut off.
constexpr size_t most_unsent_bytes = 4 << 20;

// As much of a text as fits, in whole UTF-8 characters, because the peer's Python decodes it.
std::string cut(const std::string& text) {
  size_t size = std::min(text.size(), most_text_bytes);
  auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  while (size < text.size() && size > 0 && continues(size)) --size;
  return text.substr(0, size);
}

// Whether both ends have one address: the connection never leaves this host.
bool has_one_address(int socket) {
  sockaddr_storage mine{}, theirs{};
  socklen_t size = sizeof mine, their_size = sizeof theirs;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&mine), &size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) != 0 ||
      mine.ss_family != theirs.ss_family) {
    return false;
  }
  if (mine.ss_family == AF_INET) {
    return reinterpret_cast<sockaddr_in&>(mine).sin_addr.s_addr ==
           reinterpret_cast<sockaddr_in&>(theirs).sin_addr.s_addr;
  }
  return mine.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<sockaddr_in6&>(mine).sin6_addr,
                     &reinterpret_cast<sockaddr_in6&>(theirs).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

ControlLink::ControlLink(std::vector<std::shared_ptr<Stream>> connections) {
  for (auto& connection : connections) paths_.push_back({std::move(connection), {}, {}, 1, {}});
  if (paths_.empty()) return;
  process_ = process_behind(paths_.front().stream->fd());
  stays_on_host_ = has_one_address(paths_.front().stream->fd());
}

ControlLink::~ControlLink() {
  for (Connection& path : paths_) {
    if (path.stream) path.stream->close();
  }
}

void ControlLink::send(ControlMessage message, const std::string& text) {
  SentMessage sent{message, cut(text)};
  sent.message.number = ++num_sent_;
  sent.message.text_length = static_cast<uint32_t>(sent.text.size());
  for (size_t path = 0; path < paths_.size(); ++path) send_on(path, sent);
  // Only the latest break of a connection matters, so there are never more than connections.
  if (message.kind == ControlMessage::path_down) {
    std::erase_if(recent_, [&](const SentMessage& earlier) {
      return earlier.message.kind == message.kind && earlier.message.index == message.index &&
             earlier.message.path == message.path;
    });
  }
  recent_.push_back(std::move(sent));
}

void ControlLink::send_on(size_t path, const SentMessage& sent) {
  if (!up(path)) return;
  auto* bytes = reinterpret_cast<const char*>(&sent.message);
  std::vector<char>& unsent = paths_[path].unsent;
  unsent.insert(unsent.end(), bytes, bytes + sizeof sent.message);
  unsent.insert(unsent.end(), sent.text.begin(), sent.text.end());
  flush(path);
  if (unsent.size() > most_unsent_bytes) lose(path);
}

void ControlLink::flush(size_t path) {
  std::vector<char>& unsent = paths_[path].unsent;
  size_t sent = 0;
  try {
    while (up(path) && sent < unsent.size()) {
      iovec rest{unsent.data() + sent, unsent.size() - sent};
      size_t now = paths_[path].stream->send({&rest, 1});
      if (now == 0) break;
      sent += now;
    }
  } catch (const StreamError&) {
    // receive() reads how the peer ended, and its last message.
    sent = unsent.size();
  }
  unsent.erase(unsent.begin(), unsent.begin() + static_cast<std::ptrdiff_t>(sent));
}

void ControlLink::say_goodbye(uint64_t sequence, uint64_t made, const std::string& error,
                              bool goes_on) {
  send({.kind = ControlMessage::goodbye,
        .sequence = sequence,
        .generation = made,
        .goes_on = goes_on},
       error);
}

void ControlLink::report_down(int index, size_t path, uint64_t generation) {
  send({.kind = ControlMessage::path_down,
        .generation = generation,
        .index = static_cast<uint32_t>(index),
        .path = static_cast<uint32_t>(path)});
}

void ControlLink::receive() {
  for (size_t path = 0; path < paths_.size(); ++path) receive_on(path);
}

void ControlLink::receive_on(size_t path) {
  std::vector<char>& partial = paths_[path].partial;
  flush(path);
  try {
    char buffer[most_text_bytes];
    iovec room{buffer, sizeof buffer};
    while (up(path) && state_ == State::open) {
      size_t got = paths_[path].stream->receive({&room, 1});
      if (got == 0) break;
      partial.insert(partial.end(), buffer, buffer + got);
      handle_whole(partial);
    }
  } catch (const StreamError& error) {
    lose(path, error.end);
  }
}

// Handles complete messages.
void ControlLink::handle_whole(std::vector<char>& received) {
  ControlMessage message;
  while (state_ == State::open && received.size() >= sizeof message) {
    std::memcpy(&message, received.data(), sizeof message);
    if (message.magic != ControlMessage{}.magic || message.text_length > most_text_bytes) {
      // The peer wrote it: TCP's checksum excludes damage by the network.
      throw StreamError("no control message", StreamEnd::closed);
    }
    size_t size = sizeof message + message.text_length;
    if (received.size() < size) return;
    handle(message, {received.data() + sizeof message, message.text_length});
    received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(size));
  }
}

void ControlLink::handle(const ControlMessage& message, std::string_view text) {
  if (message.number <= num_handled_) return;  // it was received on another path as well
  num_handled_ = message.number;
  if (message.kind == ControlMessage::path_down) {
    paths_down_.push_back(message);
  } else if (message.kind == ControlMessage::goodbye) {
    state_ = State::left;
    last_sequence_ = message.sequence;
    made_ = message.generation;
    goes_on_ = message.goes_on != 0;
    error_ = text;
  }
}

bool ControlLink::is_cut() const {
  return std::all_of(paths_.begin(), paths_.end(),
                     [](const Connection& path) { return path.stream == nullptr; });
}

bool ControlLink::is_closed() const {
  return is_cut() && std::any_of(paths_.begin(), paths_.end(), [](const Connection& path) {
           return path.end == StreamEnd::closed;
         });
}

bool ControlLink::is_unanswered() const {
  return std::all_of(paths_.begin(), paths_.end(), [](const Connection& path) {
    return path.stream ? unanswered_s(path.stream->fd()) > 0 : path.end == StreamEnd::silent;
  });
}

void ControlLink::watch_paths(double timeout_s) {
  timeout_s_ = timeout_s;
  for (const Connection& path : paths_) set_keepalive(*path.stream);
}

// For other sockets the kernel detects it anyway.
void ControlLink::set_keepalive(const Stream& stream) const {
  if (timeout_s_ <= 0) return;
  const int idle_s = std::max(1, static_cast<int>(std::ceil(timeout_s_ / 2)));
  struct {
    int level, option, value;
  } const settings[] = {
      {SOL_SOCKET, SO_KEEPALIVE, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, idle_s},
      {IPPROTO_TCP, TCP_KEEPINTVL, 1},
      {IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(timeout_s_ * 1000)},
  };
  for (const auto& [level, option, value] : settings) {
    setsockopt(stream.fd(), level, option, &value, sizeof value);
  }
}

void ControlLink::adopt(size_t path, std::shared_ptr<Stream> connection) {
  Connection& ours = paths_.at(path);
  if (ours.stream) ours.stream->close();
  ours = {std::move(connection), {}, {}, ours.generation + 1, {}};
  refuses_ = false;
  set_keepalive(*ours.stream);
  for (const SentMessage& sent : recent_) send_on(path, sent);
}

void ControlLink::lose(size_t path, StreamEnd how) {
  Connection& ours = paths_.at(path);
  if (ours.stream == nullptr) return;
  ours.stream->close();
  ours.stream = nullptr;
  ours.partial.clear();
  ours.unsent.clear();
  ours.end = how;
  broken_.push_back(path);
}

}  // namespace hccl
