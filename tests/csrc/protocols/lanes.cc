// The slot ring of the lanes: entries, slots, and what is read in place.
#include "lanes.h"

#include "cases.h"

namespace hccl::check {

namespace {

struct Sender {
  int rank, to, next, end;
  size_t length;
  std::vector<std::byte> payload;

  Turned turn() {
    ShmLane& lane = node->lane(rank, to);
    if (lane.flush()) return Turned::moved;
    if (!lane.flushed()) return Turned::waiting;
    if (next == end) return Turned::done;
    payload.assign(length, mark(next++));
    lane.post_send(header(length), payload.data());
    return Turned::moved;
  }
};

struct Receiver {
  int rank, from, next, end;
  size_t length;

  Turned turn() {
    if (next == end) return Turned::done;
    ShmLane& lane = node->lane(rank, from);
    const Header* peeked = lane.peek();
    if (peeked == nullptr) return Turned::waiting;
    require(peeked->length == length && peeked->fingerprint == call, "a torn header");
    const std::byte* payload = lane.lend();
    require(payload[0] == mark(next) && payload[length - 1] == mark(next), "a torn payload");
    lane.release();
    ++next;
    return Turned::moved;
  }
};

void send(int rank, int to, int begin, int end, size_t length, Way way) {
  Sender sender{rank, to, begin, end, length, {}};
  ShmLane& lane = node->lane(rank, to);
  drive(
      rank, node->event(rank), way, [&] { return sender.turn(); }, [&] { return !lane.flushed(); });
}

void receive(int rank, int from, int begin, int end, size_t length, Way way) {
  Receiver receiver{rank, from, begin, end, length};
  drive(rank, node->event(rank), way, [&] { return receiver.turn(); }, [] { return false; });
}

constexpr size_t tiny = 8, slotted = inline_bytes + 4;

// Messages before the first that is explored: all were received, or all but the last `unread`.
void run_ahead(int num_messages, int unread, size_t length) {
  Sender sender{0, 1, 0, num_messages, length, {}};
  while (sender.turn() != Turned::done) {
  }
  Receiver receiver{1, 0, 0, num_messages - unread, length};
  while (receiver.turn() != Turned::done) {
  }
}

Case stream(const std::string& name, int num_messages, size_t length, Way way, int ahead = 0,
            int unread = 0) {
  Program program;
  program.begin = [=] {
    node = new Node(2);
    run_ahead(ahead, unread, length);
  };
  program.threads = {
      [=] { send(0, 1, ahead, ahead + num_messages, length, way); },
      [=] { receive(1, 0, ahead - unread, ahead - unread + num_messages, length, way); },
  };
  return {name, program};
}

// Two threads of rank 0 bring something to rank 1, one by lane and one as windows do, and ring the
// same bell.
std::atomic<uint32_t>* signal_count;

Case two_threads_ring(int num_rounds) {
  Program program;
  program.begin = [] {
    node = new Node(2);
    signal_count = new std::atomic<uint32_t>(0);
    share(signal_count, sizeof *signal_count);
    share(node->bells[0][1].get(), sizeof(Doorbell));
  };
  program.threads = {
      [=] { send(0, 1, 0, num_rounds, tiny, Way::spins); },
      [=] {
        for (int i = 0; i < num_rounds; ++i) {
          signal_count->fetch_add(1, std::memory_order_seq_cst);
          node->bells[0][1]->message_posted();
        }
      },
      [=] {
        Receiver receiver{1, 0, 0, num_rounds, tiny};
        auto turn = [&] {
          Turned turned = receiver.turn();
          if (turned != Turned::done) return turned;
          uint32_t signalled = signal_count->load(std::memory_order_seq_cst);
          return signalled == uint32_t(num_rounds) ? Turned::done : Turned::waiting;
        };
        drive(1, node->event(1), Way::sleeps, turn, [] { return false; });
      },
  };
  return {"two threads ring one bell", program};
}

}  // namespace

std::vector<Case> lane_cases(int depth) {
  std::vector<Case> cases;
  for (Way way : {Way::spins, Way::sleeps}) {
    std::string how = way == Way::spins ? ", ranks spin" : ", ranks sleep";
    bool spins = way == Way::spins;
    cases.push_back(stream("messages in entries" + how, depth + 1 + spins, tiny, way));
    cases.push_back(stream("messages in slots" + how, depth + spins, slotted, way));
    cases.push_back(stream("messages in slots, all full" + how, depth + 1, slotted, way,
                           shape.num_slots, shape.num_slots));
    cases.push_back(stream("a full ring" + how, depth + 1, tiny, way, ring_entries, ring_entries));
  }
  cases.push_back(two_threads_ring(depth));
  return cases;
}

}  // namespace hccl::check
