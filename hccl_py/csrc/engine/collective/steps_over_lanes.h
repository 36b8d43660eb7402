// The messages of a channel by one lane to each other rank.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/calls/request.h"
#include "engine/collective/steps.h"

namespace hccl {

class StepsOverLanes final : public Steps {
 public:
  // `profile`: of timed calls; may be null.
  StepsOverLanes(int world_size, size_t slot_bytes, Profile* const& profile);

  std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }  // this rank's stays empty
  Lane& lane(int peer) const { return *lanes_[static_cast<size_t>(peer)]; }
  // `may_wait`: a message for several lanes may wait until there is room for one copy for all.
  void start(bool may_wait) {
    may_wait_for_room_ = may_wait;
    room_deadline_ = Deadline::max();
  }

  bool send(std::span<const int> peers, const Header& header, const std::byte* payload) override;
  const Header* peek(int peer) override { return lane(peer).peek(); }
  const std::byte* lend(int peer) override;
  bool receive(int peer, std::byte* destination) override;
  void release(int peer) override { lane(peer).release(); }
  bool has_come(int peer, OpKind kind) override;

  // Lanes with messages that have not left, or are still borrowed.
  const std::vector<Lane*>& unsettled() const { return backlog_.lanes(); }
  // Makes progress. True if anything moved. `is_last`: payloads that are only borrowed are copied.
  bool flush(bool is_last);
  // When send() stops to wait for room, if it does.
  Deadline room_deadline() const { return room_deadline_; }
  // Whether no message borrows these bytes any more.
  bool may_overwrite(const std::byte* begin, size_t num_bytes);
  bool is_borrowed(const std::byte* payload);

 private:
  struct Borrowed {  // the source of a send that has not left yet
    Lane* lane;
    uint64_t number;
    const std::byte* begin;
    const std::byte* end;
  };

  void post(Lane& lane, const Header& header, const std::byte* payload);
  bool waits_for_room();
  void forget_returned() {
    std::erase_if(borrowed_, [](const Borrowed& b) { return b.lane->completed() >= b.number; });
  }

  const size_t slot_bytes_;
  Profile* const& profile_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool may_wait_for_room_ = true;
  Deadline room_deadline_ = Deadline::max();
  std::vector<Borrowed> borrowed_;
  Backlog backlog_;
  std::vector<Lane*> fan_out_;
};

}  // namespace hccl
