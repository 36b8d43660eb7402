// The board: what a rank posts in a step, and when it may write over it.
#include "cases.h"

#include <span>

#include "lanes/shared_memory/board.h"

namespace hccl::check {

namespace {

struct Ranks {
  std::array<Statistics, 3> statistics;
  std::array<int, 3> events{};
  std::array<std::unique_ptr<Board>, 3> boards;
  std::array<int, 3> everyone{0, 1, 2};
  int num_ranks;

  explicit Ranks(int num) : num_ranks(num) {
    auto ranks = static_cast<size_t>(num);
    for (size_t i = 0; i < ranks; ++i) events[i] = new_event();
    for (size_t i = 0; i < ranks; ++i) {
      auto distance = std::make_shared<Distance>();
      distance->assume(false);
      boards[i] = std::make_unique<Board>(segments[i], int(i), num, distance, statistics[i]);
      for (size_t j = 0; j < ranks; ++j) {
        if (i == j) continue;
        auto bell = std::make_shared<Doorbell>(segments[j], Descriptor(events[j]), statistics[i]);
        boards[i]->add_peer(int(j), int(j), segments[j], bell);
      }
    }
  }
};

Ranks* ranks;

// Of a step: the same number in each byte, another one for each step and rank.
std::byte mark(int rank, int step) { return static_cast<std::byte>(16 * rank + step % 16); }

// A rank's steps: it posts to all, reads all, and ends the step.
struct Stepper {
  int rank;
  size_t length;
  int step, end;
  uint64_t fingerprint = call;
  bool posts = true, reads = true;
  bool has_posted = false;
  bool lacks_room = false;
  unsigned has_read = 0;
  std::vector<std::byte> payload{};
  bool has_own_payloads = false;  // each peer gets a payload of its own
  std::vector<int> others{};

  Turned turn() {
    if (step == end) return Turned::done;
    Board& board = *ranks->boards[static_cast<size_t>(rank)];
    bool has_moved = false;
    if (posts && !has_posted) {
      if (board.messages().empty()) add(board);
      lacks_room = board.post() == Board::Posted::no_room;
      if (lacks_room) return Turned::waiting;
      has_posted = has_moved = true;
    }
    unsigned all = 0;
    for (int peer = 0; peer < ranks->num_ranks; ++peer) {
      if (peer == rank || !reads) continue;
      all |= 1u << peer;
      if ((has_read >> peer & 1) != 0 || !read(board, peer)) continue;
      has_read |= 1u << peer;
      has_moved = true;
    }
    if (has_read == all) {
      board.end_step(fingerprint);
      has_posted = false;
      has_read = 0;
      ++step;
      return Turned::moved;
    }
    return has_moved ? Turned::moved : Turned::waiting;
  }

  void add(Board& board) {
    payload.assign(length, mark(rank, step));
    Header header{.fingerprint = fingerprint, .length = static_cast<uint32_t>(length)};
    std::span<const int> peers(ranks->everyone.data(), static_cast<size_t>(ranks->num_ranks));
    for (int peer = 0; peer < ranks->num_ranks; ++peer) {
      if (peer != rank && has_own_payloads) {
        board.add({peers.subspan(static_cast<size_t>(peer), 1), header, payload.data()});
      }
    }
    if (!has_own_payloads) {
      others.clear();
      for (int peer = 0; peer < ranks->num_ranks; ++peer) {
        if (peer != rank) others.push_back(peer);
      }
      board.add({others, header, payload.data()});
    }
  }

  bool read(Board& board, int peer) {
    const Header* header = board.peek(peer);
    if (header == nullptr) return false;
    require(header->fingerprint == fingerprint && header->length == length, "a torn header");
    const std::byte* at = board.payload(peer);
    require(at[0] == mark(peer, step) && at[length - 1] == mark(peer, step), "a torn payload");
    return true;
  }
};

void run(Stepper stepper, Way way) {
  drive(
      stepper.rank, ranks->events[static_cast<size_t>(stepper.rank)], way,
      [&] { return stepper.turn(); }, [&] { return stepper.lacks_room; });
}

// Steps before the first that is explored.
void run_ahead(int num_steps, size_t length) {
  std::vector<Stepper> all;
  for (int rank = 0; rank < ranks->num_ranks; ++rank) all.push_back({rank, length, 1, num_steps});
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (Stepper& one : all) is_done &= one.turn() == Turned::done;
  }
}

Case steps(const std::string& name, int num_ranks, int num_steps, size_t length, Way way,
           int ahead = 0, bool has_own_payloads = false) {
  Program program;
  program.begin = [=] {
    ranks = new Ranks(num_ranks);
    run_ahead(ahead + 1, length);
  };
  for (int rank = 0; rank < num_ranks; ++rank) {
    program.threads.push_back([=] {
      Stepper stepper{rank, length, ahead + 1, ahead + 1 + num_steps};
      stepper.has_own_payloads = has_own_payloads;
      run(std::move(stepper), way);
    });
  }
  return {name, program};
}

// Posts the steps of rank 0 alone, which rank 1 does not read. The last ones are of `last_call`.
void post_steps(int begin, int end, uint64_t fingerprint) {
  Board& board = *ranks->boards[0];
  for (int step = begin; step < end; ++step) {
    std::vector<std::byte> payload(tiny_post, mark(0, step));
    const int peers[] = {1};
    board.add({peers, {.fingerprint = fingerprint, .length = tiny_post}, payload.data()});
    require(board.post() != Board::Posted::no_room, "the place is still read");
    board.end_step(fingerprint);
  }
}

// Rank 0 posts steps and reads none, rank 1 reads them: a broadcast. `ahead` posts are unread.
Case broadcast(const std::string& name, int num_steps, size_t length, Way way, int ahead) {
  Program program;
  program.begin = [=] {
    ranks = new Ranks(2);
    Stepper poster{0, length, 1, 1 + ahead};
    poster.reads = false;
    while (poster.turn() != Turned::done) {
    }
  };
  program.threads = {
      [=] {
        Stepper poster{0, length, 1 + ahead, 1 + ahead + num_steps};
        poster.reads = false;
        run(std::move(poster), way);
      },
      [=] {
        Stepper reader{1, length, 1, 1 + num_steps};
        reader.posts = false;
        run(std::move(reader), way);
      },
  };
  return {name, program};
}

const Header* await_post() {
  const Header* header;
  while ((header = ranks->boards[1]->peek(0)) == nullptr) wait();
  return header;
}

// Rank 1 ends a step without reading what rank 0, in another call, posted in it.
Case other_call(int num_steps) {
  Program program;
  program.begin = [] { ranks = new Ranks(2); };
  program.threads = {
      [=] {
        post_steps(1, 2, call + 1);
        post_steps(2, 1 + num_steps, call);
      },
      [] {
        ranks->boards[1]->end_step(call);
        require(await_post()->fingerprint == call + 1, "the other call is not seen");
      },
  };
  return {"a step that a rank does not read", program};
}

// Rank 1 has ended the first steps without reading them, and looks at them again while rank 0
// writes over them: what it posts there belongs to another call, of a later step.
Case late_reader(int num_late) {
  Program program;
  program.begin = [=] {
    ranks = new Ranks(2);
    for (int step = 1; step <= num_late; ++step) ranks->boards[1]->end_step(call);
    post_steps(1, int(post_entries), call);
  };
  program.threads = {
      [=] { post_steps(int(post_entries), int(post_entries) + 1 + num_late, call + 1); },
      [] {
        require(await_post()->fingerprint == call, "a later call is taken for an earlier one");
      },
  };
  return {"posts written over before a late look", program};
}

}  // namespace

std::vector<Case> board_cases(int depth) {
  constexpr size_t buffered = inline_bytes + 4;
  std::vector<Case> cases;
  for (Way way : {Way::spins, Way::sleeps}) {
    std::string how = way == Way::spins ? ", ranks spin" : ", ranks sleep";
    bool spins = way == Way::spins;
    cases.push_back(steps("steps in entries" + how, 2, depth + spins, tiny_post, way));
    cases.push_back(steps("steps in buffers" + how, 2, depth + spins, buffered, way,
                          int(shape.num_post_buffers())));
    cases.push_back(broadcast("a broadcast in buffers written again" + how, depth + 1, buffered,
                              way, int(shape.num_post_buffers())));
    cases.push_back(broadcast("a broadcast in entries written again" + how, depth + 1, tiny_post,
                              way, int(post_entries)));
    cases.push_back(steps("steps in entries written again" + how, 2, depth + spins, tiny_post, way,
                          int(post_entries)));
  }
  cases.push_back(steps("three ranks", 3, 1, tiny_post, Way::spins));
  cases.push_back(steps("payloads for each", 2, depth, tiny_post, Way::spins, 0, true));
  cases.push_back(other_call(depth + 1));
  cases.push_back(late_reader(depth + 1));
  return cases;
}

}  // namespace hccl::check
