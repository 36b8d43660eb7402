// The messages of a small call inside a node, by the board. Messages to other nodes, or too long
// for the board, are sent by lane.
#pragma once

#include <span>
#include <vector>

#include "base/copy.h"
#include "engine/calls/timed.h"
#include "engine/collective/steps_over_lanes.h"
#include "lanes/shared_memory/board.h"

namespace hccl {

class StepsOverBoard final : public Steps {
 public:
  // A larger call, in total bytes, rarely has messages short enough for the board.
  static constexpr size_t max_call_bytes = 8 * post_buffer_bytes;

  StepsOverBoard(StepsOverLanes& lanes, Profile* const& profile)
      : lanes_(lanes), profile_(profile) {}
  void set_board(Board& board) { board_ = &board; }  // outlives this

  // Starts the first tile of the call here; false if it does not fit. A compressed send changes its
  // source, and the board reads what earlier sends of the step name only when the last one is made.
  bool start(const Call& call) {
    plan_ = call.plan;
    step_ = 0;
    has_posted_ = lacks_room_ = false;
    return board_ != nullptr && !plan_->steps.empty() && call.total_bytes <= max_call_bytes &&
           call.compression == Compression::none;
  }
  // Whether the current step ends before this op.
  bool ends_before(size_t op) const { return op == static_cast<size_t>(plan_->steps[step_]); }
  // False while the board has no room for the sent messages.
  bool end_step(uint64_t fingerprint) {
    if (!end_sends()) return false;
    board_->end_step(fingerprint);
    has_posted_ = false;
    ++step_;
    return true;
  }
  bool has_ended() const { return step_ == plan_->steps.size(); }
  bool lacks_room() const { return lacks_room_; }
  // The ranks that must still read before there is room.
  std::vector<int> behind() const { return lacks_room_ ? board_->behind() : std::vector<int>(); }

  bool send(std::span<const int> peers, const Header& header, const std::byte* payload) override {
    Board::Message message{peers, header, payload};
    board_->add(message);
    return send_by_lanes(message, false);
  }
  bool end_sends() override {
    if (has_posted_) return true;
    Board::Posted posted;
    {
      Timed timed(profile_, &Profile::copy_ns);
      posted = board_->post();
    }
    lacks_room_ = posted == Board::Posted::no_room;
    if (lacks_room_) return false;
    has_posted_ = true;
    if (posted == Board::Posted::whole) return true;
    for (const Board::Message& message : board_->messages()) send_by_lanes(message, true);
    return true;
  }
  const Header* peek(int peer) override {
    if (has(peer)) {
      const Header* header = board_->peek(peer);
      if (header == nullptr || posted(peer) != nullptr) return header;
    }
    return lanes_.peek(peer);
  }
  const std::byte* lend(int peer) override {
    const std::byte* payload = posted(peer);
    return payload != nullptr ? payload : lanes_.lend(peer);
  }
  bool receive(int peer, std::byte* destination) override {
    const std::byte* payload = posted(peer);
    if (payload == nullptr) return lanes_.receive(peer, destination);
    Timed timed(profile_, &Profile::copy_ns);
    copy(destination, payload, board_->peek(peer)->length);
    return true;
  }
  void release(int peer) override {
    if (posted(peer) == nullptr) lanes_.release(peer);
  }
  bool has_come(int peer, OpKind kind) override {
    return peek(peer) != nullptr && (posted(peer) != nullptr || lanes_.has_come(peer, kind));
  }

 private:
  bool has(int peer) const { return board_ != nullptr && board_->has(peer); }
  // The payload of the peeked message; null if it comes by lane.
  const std::byte* posted(int peer) const { return has(peer) ? board_->payload(peer) : nullptr; }
  // To the peers on the board, or to the others.
  bool send_by_lanes(const Board::Message& message, bool on_board) {
    by_lane_.clear();
    for (int peer : message.peers) {
      if (has(peer) == on_board) by_lane_.push_back(peer);
    }
    return by_lane_.empty() || lanes_.send(by_lane_, message.header, message.payload);
  }

  StepsOverLanes& lanes_;
  Profile* const& profile_;
  Board* board_ = nullptr;
  const Plan* plan_ = nullptr;
  size_t step_ = 0;
  bool has_posted_ = false;  // in this step
  bool lacks_room_ = false;  // for a post
  std::vector<int> by_lane_;
};

}  // namespace hccl
