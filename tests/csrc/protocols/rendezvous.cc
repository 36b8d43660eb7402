// Messages that stay in their sender's memory: announced, copied by the kernel, copied by both
// ends; the replies that are written there; and what happens to that memory when a call fails.
#include "cases.h"

#include <unistd.h>

#include <atomic>

#include "lanes.h"

namespace hccl::check {

namespace {

constexpr size_t announced_bytes = 4096, single_bytes = 8192, joint_bytes = min_joint_bytes;

std::shared_ptr<Arena> arena;  // of rank 0
std::byte* registered;         // in it
std::byte* source;             // ordinary memory of rank 0
std::byte* destination;        // and of rank 1

std::byte* ordinary_memory() {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, joint_bytes));
  share(memory, joint_bytes, 1024);
  return memory;
}

void make_memory() {
  arena = Arena::create(size_t{1} << 30);
  registered = arena->allocate(announced_bytes);
  share(registered, announced_bytes, 64);
  source = ordinary_memory();
  destination = ordinary_memory();
}

void fill(std::byte* at, size_t num_bytes, std::byte value) {
  std::memset(at, static_cast<int>(value), num_bytes);
}

void require_all(const std::byte* at, size_t num_bytes, std::byte value, const char* what) {
  for (size_t i = 0; i < num_bytes; i += 64) require(at[i] == value, what);
  require(at[num_bytes - 1] == value, what);
}

// ---- how a message travels

struct Kind {
  size_t num_bytes;
  CopyMode mode;
  bool sender_waits;

  std::byte* memory() const { return mode == CopyMode::single ? source : registered; }
  Header header(uint16_t reply = 0) const {
    return {.fingerprint = call,
            .length = static_cast<uint32_t>(num_bytes),
            .kind = reply,
            .sender_waits = sender_waits,
            .wants_reply = reply > 0,
            .copy_mode = mode};
  }
};

constexpr Kind announces{announced_bytes, CopyMode::cached, false};
constexpr Kind copies_once{single_bytes, CopyMode::single, false};
constexpr Kind copies_jointly{joint_bytes, CopyMode::single, true};

void connect() {
  node = new Node(2);
  node->lane(0, 1).set_arenas(arena, nullptr, 1);
  node->lane(1, 0).set_arenas(nullptr, arena->window(), 1);
  for (ShmLane* lane : {&node->lane(0, 1), &node->lane(1, 0)}) {
    lane->take_long_messages();
    lane->read_from(getpid());
  }
}

template <class Turn>
void drive_lane(int rank, Way way, Turn turn) {
  ShmLane& lane = node->lane(rank, 1 - rank);
  drive(rank, node->event(rank), way, turn, [&lane] { return !lane.settled(); });
}

// Posts what is in place and waits until it may change.
void send_in_place(const Kind& kind, int number, Way way, uint16_t reply = 0) {
  ShmLane& lane = node->lane(0, 1);
  fill(kind.memory(), kind.num_bytes, mark(number));
  uint64_t posted = lane.post_send(kind.header(reply), kind.memory());
  drive_lane(0, way, [&] {
    if (lane.completed() >= posted) return Turned::done;
    return lane.flush() ? Turned::moved : Turned::waiting;
  });
}

// Reads a message in place, or receives it into `destination`.
bool take(const Kind& kind, int number) {
  ShmLane& lane = node->lane(1, 0);
  if (lane.peek() == nullptr) return false;
  if (kind.mode == CopyMode::single && !lane.receive(destination)) return false;
  const std::byte* at = kind.mode == CopyMode::single ? destination : lane.lend();
  require_all(at, kind.num_bytes, mark(number), "a torn payload");
  lane.release();
  fill(destination, kind.num_bytes, std::byte{0xee});  // its owner's again
  return true;
}

void receive(const Kind& kind, int number, Way way) {
  bool is_done = false;
  drive_lane(1, way, [&] {
    if (is_done) return Turned::done;
    is_done = take(kind, number);
    return is_done ? Turned::moved : Turned::waiting;
  });
}

Case stream(const std::string& name, const Kind& kind, int num_messages, Way way) {
  Program program;
  program.begin = connect;
  program.threads = {
      [=] {
        for (int i = 0; i < num_messages; ++i) send_in_place(kind, i, way);
        fill(kind.memory(), kind.num_bytes, std::byte{0xff});
      },
      [=] {
        for (int i = 0; i < num_messages; ++i) receive(kind, i, way);
      },
  };
  return {name, program};
}

// ---- replies

constexpr int answer = 8;
std::byte answers[announced_bytes];

void reply() {
  std::memset(answers, static_cast<int>(mark(answer)), sizeof answers);
  node->lane(1, 0).post_send(announces.header(), answers);
}

// The answer lies where the request was.
Case replies(const std::string& name, Way way) {
  Program program;
  program.begin = connect;
  program.threads = {
      [=] {
        send_in_place(announces, 0, way, 1);
        ShmLane& lane = node->lane(0, 1);
        drive_lane(0, way, [&] { return lane.peek() ? Turned::done : Turned::waiting; });
        require(lane.lend() == registered, "the answer is elsewhere");
        require_all(registered, announced_bytes, mark(answer), "a torn answer");
        lane.release();
        fill(registered, announced_bytes, std::byte{0xff});
      },
      [=] {
        receive(announces, 0, way);
        reply();
      },
  };
  return {name, program};
}

// ---- failed calls

// The peer may write its answer into registered memory for ever: that memory is never used again.
Case gives_up_registered_memory() {
  static std::byte* memory = nullptr;
  Program program;
  program.begin = [] {
    lasting([] {
      if (memory != nullptr) arena->release(memory);
      memory = arena->allocate(announced_bytes);
    });
    share(memory, announced_bytes, 64);
    connect();
    fill(memory, announced_bytes, mark(0));
    node->lane(0, 1).post_send(announces.header(1), memory);
    require(take(announces, 0), "no request");
  };
  program.threads = {
      [] {
        segments[0]->withdraw();
        while (!node->lane(0, 1).abandon()) wait();
        if (!arena->is_retired(memory)) fill(memory, announced_bytes, std::byte{0xff});
      },
      [] {
        try {
          reply();
        } catch (const LaneError&) {  // it sees that rank 0 has failed
        }
      },
  };
  return {"registered memory is given up", program};
}

// The receiver maps the arena, or finds that it can read the sender's process, during a message.
Case maps_meanwhile(const Kind& kind) {
  Program program;
  program.begin = [] {
    node = new Node(2);
    node->lane(0, 1).set_arenas(arena, nullptr, 1);
    for (ShmLane* lane : {&node->lane(0, 1), &node->lane(1, 0)}) lane->take_long_messages();
  };
  program.threads = {
      [=] { send_in_place(kind, 0, Way::spins); },
      [=] {
        node->lane(1, 0).set_arenas(nullptr, arena->window(), 1);
        node->lane(1, 0).read_from(getpid());
        receive(kind, 0, Way::spins);
      },
  };
  return {"the receiver maps the memory during a message", program};
}

// Rank 1 gives up a message that both ends copy; then its memory is its caller's.
Case gives_up_a_joint_copy(int num_turns) {
  Program program;
  program.begin = [] {
    connect();
    fill(source, joint_bytes, mark(0));
    node->lane(0, 1).post_send(copies_jointly.header(), source);
  };
  program.threads = {
      [=] {
        for (int i = 0; i < num_turns; ++i) node->lane(0, 1).flush();
      },
      [] {
        ShmLane& lane = node->lane(1, 0);
        lane.peek();
        lane.receive(destination);
        segments[1]->withdraw();
        while (!lane.abandon()) wait();
        fill(destination, joint_bytes, std::byte{0xee});
      },
  };
  return {"a joint copy is given up", program};
}

// A call fails while its message is read in place: its memory may change at any time, and a reader
// that then releases the message must not have read the change. Both accesses are relaxed atomics,
// because the product's copies are plain and meant to race here.
Case changes_while_read() {
  Program program;
  program.begin = [] {
    connect();
    fill(registered, announced_bytes, mark(0));
    node->lane(0, 1).post_send(announces.header(), registered);
  };
  program.threads = {
      [] {
        segments[0]->withdraw();
        node->lane(0, 1).abandon();
        std::atomic_ref(*reinterpret_cast<uint8_t*>(registered))
            .store(0xff, std::memory_order_relaxed);
      },
      [] {
        ShmLane& lane = node->lane(1, 0);
        lane.peek();
        lane.lend();
        std::byte read{std::atomic_ref(*reinterpret_cast<uint8_t*>(registered))
                           .load(std::memory_order_relaxed)};
        try {
          lane.release();
          require(read == mark(0), "a released message was read after its call had failed");
        } catch (const LaneError&) {  // it sees that rank 0 has failed
        }
      },
  };
  return {"a call fails while its message is read", program};
}

}  // namespace

std::vector<Case> rendezvous_cases(int depth) {
  make_memory();
  std::vector<Case> cases;
  for (Way way : {Way::spins, Way::sleeps}) {
    std::string how = way == Way::spins ? ", ranks spin" : ", ranks sleep";
    bool spins = way == Way::spins;
    cases.push_back(stream("announced messages" + how, announces, depth + spins, way));
    cases.push_back(
        stream("messages that the kernel copies" + how, copies_once, depth + spins, way));
    cases.push_back(stream("messages that both ends copy" + how, copies_jointly, depth, way));
    cases.push_back(replies("a reply in registered memory" + how, way));
  }
  cases.push_back(gives_up_registered_memory());
  cases.push_back(maps_meanwhile(announces));
  cases.push_back(maps_meanwhile(copies_once));
  cases.push_back(gives_up_a_joint_copy(depth + 1));
  cases.push_back(changes_while_read());
  return cases;
}

}  // namespace hccl::check
