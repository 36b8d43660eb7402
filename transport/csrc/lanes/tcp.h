// Lanes over connections between hosts: the provider for ranks of different nodes.
//
// A lane has a connection on each path to its peer, made when a message is first sent on it, by
// either end. A message goes to the path that is expected to finish it first, and stays in the send
// window until the peer has acknowledged it. When a connection breaks, its unacknowledged messages
// are sent again on the others, or on its replacement; the receiver detects duplicates by the
// sequence numbers.
//
// Messages are sent directly from and received directly into the caller's memory; only operands of
// reductions, and messages that arrive early on one of several paths, are assembled in a slot.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lanes/lane.h"
#include "lanes/path.h"
#include "lanes/send_window.h"

namespace hccl {

class TcpLane;
// A lane whose connections are replaced when they break.
class ReplaceableLane {
 public:
  virtual ~ReplaceableLane() = default;
  virtual size_t num_paths() const = 0;
  virtual int fd(size_t path) const = 0;  // -1: it is down
  // How many connections the path has had; both sides count alike.
  virtual uint64_t generation(size_t path) const = 0;
  // Accepts a connection that replaces the path's earlier one.
  virtual void adopt(size_t path, std::shared_ptr<Stream> connection) = 0;
  // Ends a connection that is known to be broken.
  virtual void lose(size_t path, const std::string& why) = 0;
  // No connection will be replaced any more: the peer has left or died.
  virtual void peer_has_ended() = 0;
  // Checks every connection for its end and for acknowledgements.
  virtual void poll() = 0;
  virtual bool is_open() const = 0;  // any connection
  // Whether the peer lacks or may lack a message, which must be sent, perhaps over a new
  // connection.
  virtual bool owes() const = 0;
  // Whether the peer regularly closed the last connection of a path.
  virtual bool closed_by_peer() const = 0;
  virtual std::vector<PathTrouble> troubles(const std::vector<double>& unanswered_s) const = 0;
};

// Notified of broken connections, and of lanes that need their first ones.
class PathObserver {
 public:
  virtual ~PathObserver() = default;
  // The first message was posted, and no path has had a connection yet.
  virtual void lane_wanted(const TcpLane& lane) = 0;
  // False: no other connection will come, since the peer has left or died.
  virtual bool path_lost(const TcpLane& lane, size_t path) = 0;
};

struct TcpOptions {
  size_t slot_bytes = 131072;
  bool checksum = false;      // CRC32C of every frame; the peer must want the same
  double path_timeout_s = 2;  // how long bytes may be unacknowledged until a path counts as cut
  int lane = 0;               // which of the pair's lanes this is
  std::vector<std::string> names;    // of the paths, for messages
  PathObserver* observer = nullptr;  // nullptr: no connection is ever made or replaced
};

class TcpLane final : public Lane, public ReplaceableLane {
 public:
  using Clock = std::chrono::steady_clock;

  // One connection per path, or nullptr for one that adopt() brings later; they must be of the same
  // kind on both sides.
  TcpLane(int peer, std::vector<std::shared_ptr<Stream>> connections, const TcpOptions& options,
          Statistics& statistics);

  uint64_t post_send(const Header& header, const std::byte* payload) override;
  bool flush() override;
  uint64_t completed() const override { return window_.completed(); }
  bool flushed() const override;
  bool settled() const override { return flushed() && completed() == window_.posted(); }
  void detach() override;
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override;

  int index() const { return options_.lane; }
  size_t num_paths() const override { return paths_.size(); }
  int fd(size_t path) const override { return paths_[path]->fd(); }
  void adopt(size_t path, std::shared_ptr<Stream> connection) override;
  void lose(size_t path, const std::string& why) override { lose(path, why, StreamEnd::given_up); }
  uint64_t generation(size_t path) const override { return paths_[path]->generation(); }
  // Why replacing connections is hopeless: each of the last ones became silent before any of its
  // messages was acknowledged. Empty: it is not.
  std::string why_fruitless() const;
  void peer_has_ended() override;
  // Called about every 100 ms: detects cut paths and lost tails.
  void tend(Clock::time_point now) override;
  void poll() override {
    for (size_t i = 0; i < paths_.size(); ++i) head_of(i);
  }
  bool is_open() const override;
  bool closed_by_peer() const override;
  bool delivered() const override;
  bool owes() const override;
  std::vector<PathTrouble> troubles(const std::vector<double>& unanswered_s = {}) const override;
  const std::shared_ptr<PathStatistics>& statistics(size_t path) const {
    return paths_[path]->statistics();
  }

 private:
  static constexpr uint64_t max_unacknowledged = 64;
  static constexpr size_t nowhere = ~size_t{0};
  static constexpr size_t in_stash = nowhere - 1;

  // A message that arrived early, or completely over a connection that broke before its release, or
  // that precedes acknowledgements.
  struct Stashed {
    Header header;
    PayloadBuffer payload;
    bool there = false;
  };

  uint64_t expected() const { return taken_ + 1; }
  bool several() const { return paths_.size() > 1; }
  // Whether the next message has to wait for acknowledgements.
  bool is_window_full() const {
    return cursor_ <= window_.posted() && cursor_ > window_.acknowledged() + max_unacknowledged;
  }
  bool any_up() const {
    return std::any_of(paths_.begin(), paths_.end(), [](auto& path) { return path->up(); });
  }
  void throw_if_dead() const {
    if (why_dead_) throw LaneError(peer(), *why_dead_);
  }

  // tcp.cc: sending
  bool send_waiting();
  size_t choose(size_t num_bytes);
  // These return true if anything moved.
  bool begin(size_t path, Frame& frame, const std::byte* payload);
  bool go_on(size_t path);
  void send_ack();
  void send_control(size_t path, Frame::Kind kind);
  void requeue(size_t path);
  void lose(size_t path, const std::string& why, StreamEnd how);
  void end(size_t path, const std::string& why, StreamEnd how);
  void release_acknowledged();
  void count_break(size_t path, StreamEnd how);
  void bury(const std::string& why);
  void note_wanted();
  void probe(Clock::time_point now);

  // tcp_receive.cc
  const Frame* head_of(size_t path);
  bool stash_heads();
  void stash_current();
  void read_on();
  const Header* show(size_t where, const Header& header);
  Stashed& stashed(uint64_t number) { return stash_[number % max_unacknowledged]; }
  // The result of `read` on a path; nothing if its connection breaks.
  template <class Read>
  std::invoke_result_t<Read, Path&> reading(size_t path, Read read) {
    try {
      return read(*paths_[path]);
    } catch (const StreamError& error) {
      lose(path, error.what(), error.end);
      return {};
    }
  }

  const TcpOptions options_;
  BufferPool pool_;
  std::vector<std::unique_ptr<Path>> paths_;
  bool is_wanted_ = false;               // a connection was made or asked for,
  Clock::time_point wanted_at_{};        // and when
  bool peer_ended_ = false;              // nothing will be replaced
  std::optional<std::string> why_dead_;  // if set, nothing will be sent or received

  // Sending.
  SendWindow window_;
  uint64_t cursor_ = 1;                      // no lower message waits to be sent
  uint64_t peer_has_ = 0;                    // as acknowledged; the window may be behind
  bool polled_ = false;                      // for acknowledgements, since the last flush
  uint64_t progress_number_ = ~uint64_t{0};  // acknowledged when that last changed,
  Clock::time_point progress_at_{};          // and when that was
  Clock::time_point next_probe_{};
  // Consecutive connections that were given up without an acknowledgement.
  int num_fruitless_breaks_ = 0;
  uint64_t number_at_break_ = 0;  // acknowledged
  uint32_t mtu_ = 0;              // of the last that broke
  Clock::time_point first_fruitless_{};
  Clock::time_point checked_at_{};

  // Receiving.
  uint64_t taken_ = 0;        // messages released
  size_t current_ = nowhere;  // where the peeked message is
  bool complete_ = false;     // all of its payload was delivered
  Header header_;             // of the peeked message
  size_t last_path_ = 0;
  int num_fruitless_ = 0;
  std::array<Stashed, max_unacknowledged> stash_;
  const std::byte* lent_ = nullptr;  // the peeked message's payload, once it was lent or stashed
  // Since the last acknowledgement.
  uint64_t num_unacknowledged_ = 0;
  uint64_t num_large_ = 0;
  size_t small_received_ = 0;
  bool ack_due_ = false;
};

}  // namespace hccl
