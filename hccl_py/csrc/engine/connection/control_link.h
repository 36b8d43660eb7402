// The control connections between two ranks: goodbyes, paths that are down, and the end of a peer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/stream.h"

namespace hccl {

// A message between two ranks besides data. `text_length` bytes of text follow.
struct ControlMessage {
  enum Kind : uint32_t { goodbye = 1, path_down = 2 };
  uint32_t magic = 0x4c434348;
  uint32_t kind = goodbye;
  uint64_t number = 0;    // of this link: 1 for its first message, then counting up
  uint64_t sequence = 0;  // goodbye: collectives submitted
  // path_down: which connection of the path its sender gave up.
  // goodbye: the data connections that its sender has had with the receiver, one bit each.
  uint64_t generation = 0;
  uint32_t index = 0;  // 0: control, 1 + lane
  uint32_t path = 0;
  uint32_t text_length = 0;
  uint32_t goes_on = 0;  // goodbye: 1 if a new communicator has taken this one's place
};
static_assert(sizeof(ControlMessage) == 48);
inline constexpr size_t most_text_bytes = 4096;

class ControlLink {
 public:
  enum class State { open, left, lost };

  // Connections on different paths to the same peer: every message goes out on all of them.
  explicit ControlLink(std::vector<std::shared_ptr<Stream>> connections);
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;
  ~ControlLink();

  State state() const { return state_; }
  uint64_t last_sequence() const { return last_sequence_; }
  // The error that the peer was handling when it left; empty: none.
  const std::string& error() const { return error_; }
  // The data connections that the peer had had when it left, see Connections::made().
  uint64_t made() const { return made_; }
  bool goes_on() const { return goes_on_; }  // in a new communicator, see ControlMessage
  void declare_lost() { state_ = State::lost; }

  // Bytes that a connection cannot take at once are sent by the next receive().
  void say_goodbye(uint64_t sequence, uint64_t made = 0, const std::string& error = {},
                   bool goes_on = false);
  void report_down(int index, size_t path, uint64_t generation);
  // Reads available messages; updates state().
  void receive();
  // Paths that the peer has given up, and connections of this link that broke, since the last call.
  std::vector<ControlMessage> take_paths_down() { return std::exchange(paths_down_, {}); }
  std::vector<size_t> take_broken() { return std::exchange(broken_, {}); }
  bool has_broken() const { return !broken_.empty(); }

  size_t num_paths() const { return paths_.size(); }
  int fd(size_t path) const { return up(path) ? paths_[path].stream->fd() : -1; }
  bool up(size_t path) const { return paths_[path].stream != nullptr; }
  // Whether no connection is left, and whether the peer closed one of them regularly.
  bool is_cut() const;
  bool is_closed() const;
  // Whether the peer's host does not answer on any path.
  bool is_unanswered() const;
  // Records that no process listens there, if no connection is left. False: one is.
  bool note_refusal() { return refuses_ = is_cut(); }
  bool refuses() const { return refuses_; }
  // The peer's process, where it runs on this host and the kernel vouches for it; else 0.
  pid_t process() const { return process_; }
  // Whether the link stays on this host, though it may be a TCP connection.
  bool stays_on_host() const { return stays_on_host_; }
  uint64_t generation(size_t path) const { return paths_[path].generation; }
  // Makes the kernel detect within about `timeout_s` that a path is cut.
  void watch_paths(double timeout_s);
  void adopt(size_t path, std::shared_ptr<Stream> connection);
  void lose(size_t path, StreamEnd how = StreamEnd::given_up);

 private:
  struct Connection {
    std::shared_ptr<Stream> stream;
    std::vector<char> partial;
    std::vector<char> unsent;
    uint64_t generation = 1;
    std::optional<StreamEnd> end;  // once it is closed
  };

  struct SentMessage {
    ControlMessage message;
    std::string text;
  };

  void send(ControlMessage message, const std::string& text = {});
  void send_on(size_t path, const SentMessage& sent);
  void flush(size_t path);
  void set_keepalive(const Stream& stream) const;
  void receive_on(size_t path);
  void handle_whole(std::vector<char>& received);
  void handle(const ControlMessage& message, std::string_view text);

  pid_t process_ = 0;  // of the peer, where the kernel vouches for it
  bool stays_on_host_ = false;
  std::vector<Connection> paths_;
  double timeout_s_ = 0;
  State state_ = State::open;
  bool refuses_ = false;
  uint64_t last_sequence_ = 0;
  uint64_t made_ = 0;
  bool goes_on_ = false;
  std::string error_;
  uint64_t num_sent_ = 0;
  uint64_t num_handled_ = 0;        // the number of the last handled message
  std::deque<SentMessage> recent_;  // repeated on a connection that replaces another
  std::vector<ControlMessage> paths_down_;
  std::vector<size_t> broken_;
};

}  // namespace hccl
