// The states of a peer, without sockets: which events change them, what then has to be done, and
// what passes with time alone.
#include "check.h"
#include "engine/connection/peer_state.h"

namespace hccl::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using enum PeerState::State;
using enum PeerState::Event;
using enum PeerState::Action;

constexpr PeerState::Event all_events[] = {lane_broke, link_cut, link_restored, link_closed, time,
                                           left_early, left,     lost,          lanes_came};

PeerState after(std::initializer_list<PeerState::Event> events, Deadline now = {}) {
  PeerState peer;
  for (PeerState::Event event : events) CHECK(peer.on(event, now));
  return peer;
}

// What one event makes of a peer.
struct Expected {
  PeerState::Event event;
  PeerState::State to;
  PeerState::Action action;
};

void check_events(const PeerState& before, std::initializer_list<Expected> expected) {
  for (PeerState::Event event : all_events) {
    PeerState peer = before;
    std::optional<PeerState::Action> action = peer.on(event, Deadline() + seconds(1));
    const Expected* found = nullptr;
    for (const Expected& row : expected) {
      if (row.event == event) found = &row;
    }
    CHECK(action.has_value() == (found != nullptr), "event %d", event);
    CHECK(peer.state() == (found ? found->to : before.state()), "event %d", event);
    CHECK(peer.since() == (found ? Deadline() + seconds(1) : before.since()));
    CHECK(!found || *action == found->action, "event %d", event);
  }
}

HCCL_TEST(events_of_a_peer_that_is_connected) {
  check_events(after({}), {{lane_broke, suspect, nothing},
                           {link_cut, cut, nothing},
                           {link_closed, ending, nothing},
                           {left, ended, nothing},
                           {left_early, arriving, nothing},
                           {lost, ended, report_end}});
}

HCCL_TEST(events_of_a_peer_that_is_cut) {
  check_events(after({link_cut}), {{lane_broke, suspect, nothing},
                                   {link_restored, connected, nothing},
                                   {link_closed, ending, nothing},
                                   {time, cut, report_paths},
                                   {left, ended, nothing},
                                   {left_early, arriving, nothing},
                                   {lost, ended, report_end}});
}

HCCL_TEST(events_of_a_suspect_whose_end_fails_the_call) {
  check_events(after({lane_broke}), {{link_closed, ending_broken, nothing},
                                     {time, connected, report_paths},
                                     {left, ended, report_end},
                                     {left_early, arriving, report_end},
                                     {lost, ended, report_end}});
}

HCCL_TEST(events_of_a_peer_whose_process_may_be_ending) {
  check_events(
      after({link_closed}),
      {{lane_broke, ending_broken, nothing}, {time, ended, report_end}, {lost, ended, report_end}});
  check_events(after({lane_broke, link_closed}),
               {{time, ended, report_end}, {lost, ended, report_end}});
}

HCCL_TEST(events_of_a_peer_that_has_ended) {
  check_events(after({left_early}), {{lanes_came, ended, end_lanes}, {time, ended, end_lanes}});
  check_events(after({left}), {});
}

HCCL_TEST(data_waits_only_until_it_is_known_why_a_lane_broke) {
  CHECK(after({lane_broke}).holds_traffic());
  CHECK(after({lane_broke, link_closed}).holds_traffic());
  for (const PeerState& peer : {after({}), after({link_cut}), after({link_closed}), after({lost}),
                                after({left_early}), after({lane_broke, time})}) {
    CHECK(!peer.holds_traffic());
  }
}

HCCL_TEST(a_state_that_passes_by_itself_has_a_deadline_from_its_beginning) {
  const Deadline begin = Deadline() + seconds(10);
  CHECK(after({lane_broke}, begin).deadline() == begin + milliseconds(300));
  CHECK(after({link_closed}, begin).deadline() == begin + milliseconds(100));
  CHECK(after({left_early}, begin).deadline() == begin + seconds(5));
  CHECK(after({link_cut}, begin).deadline() == begin + seconds(45));
  CHECK(after({link_cut, time}, begin).deadline() == begin + seconds(45));
  for (const PeerState& peer : {after({}, begin), after({lost}, begin)}) {
    CHECK(peer.deadline() == Deadline::max() && !peer.is_unsettled());
  }
}

// Every sequence of events of this length, from every state that it reaches.
uint64_t check_all_sequences(const PeerState& before, int num_events, int num_reports) {
  CHECK(!before.is_unsettled() || before.deadline() < Deadline::max());
  CHECK(!before.holds_traffic() || before.is_unsettled());
  PeerState later = before;
  for (int i = 0; i < 3 && later.is_unsettled(); ++i) later.on(time, later.deadline());
  CHECK(!later.is_unsettled(), "time alone does not settle state %d", before.state());
  if (num_events == 0) return 1;
  uint64_t num_sequences = 0;
  for (PeerState::Event event : all_events) {
    PeerState peer = before;
    std::optional<PeerState::Action> action = peer.on(event, Deadline() + seconds(1));
    CHECK(peer.has_ended() || !before.has_ended(), "event %d brings a peer back", event);
    CHECK(action || peer.state() == before.state());
    int reports = num_reports + (action == report_end);
    CHECK(reports <= 1 && (action != report_end || peer.has_ended()));
    num_sequences += check_all_sequences(peer, num_events - 1, reports);
  }
  return num_sequences;
}

HCCL_TEST(every_sequence_of_events_reports_one_end_and_settles_by_time) {
  std::printf("%lu sequences\n",
              static_cast<unsigned long>(check_all_sequences(PeerState(), 6, 0)));
}

}  // namespace
}  // namespace hccl::test
