// Windows: memory that a peer writes, the signal that follows, and the signals of closing windows.
#include "engine/window.h"

#include "cases.h"
#include "lanes.h"

namespace hccl::check {

namespace {

constexpr size_t window_bytes = 128;

std::shared_ptr<Arena> arena;  // of both ranks: they are one process here
std::array<std::byte*, 2> memory;
std::array<std::unique_ptr<Window>, 2> windows;

// Windows keep their counters in the arena, which outlives an execution.
void open_windows() {
  lasting([] {
    auto open = std::make_shared<Windows>();
    for (size_t rank : {0, 1}) {
      if (windows[rank]) windows[rank]->withdraw(true);
      std::span<std::byte> all(memory[rank], window_bytes);
      windows[rank] = std::make_unique<Window>(arena, int(rank), 2, all);
      Windows::open(open, *windows[rank], rank, false);
    }
  });
  for (size_t rank : {0, 1}) {
    const Window& theirs = *windows[1 - rank];
    uint64_t signals = *theirs.signals_offset();
    share(arena->window()->at(signals, 1), 4 * sizeof(SignalCounter), 8);
    bool is_mapped =
        windows[rank]->add_peer(int(1 - rank), arena->window(), node->bells[rank][1 - rank],
                                window_bytes, *theirs.memory_offset(), signals);
    require(is_mapped, "the counters lie outside");
  }
}

void await_signal(int rank, Signal which, Way way) {
  bool is_done = false;
  auto turn = [&] {
    if (is_done) return Turned::done;
    is_done = windows[size_t(rank)]->take_signal(1 - rank, which);
    return is_done ? Turned::moved : Turned::waiting;
  };
  drive(rank, node->event(rank), way, turn, [] { return false; });
}

void signal(int rank, Signal which) {
  require(windows[size_t(rank)]->signal(1 - rank, which), "no signal");
}

// Both close; then the memory is its owner's again.
void close(int rank, Way way) {
  signal(rank, Signal::closing);
  await_signal(rank, Signal::closing, way);
  std::memset(memory[size_t(rank)], 0xff, window_bytes);
}

// Rank 0 puts and signals, rank 1 reads and signals that rank 0 may put again.
Case puts(const std::string& name, int num_rounds, Way way) {
  Program program;
  program.begin = [] {
    node = new Node(2);
    open_windows();
  };
  program.threads = {
      [=] {
        for (int i = 0; i < num_rounds; ++i) {
          std::array<std::byte, window_bytes> payload;
          payload.fill(mark(i));
          require(windows[0]->put(1, 0, payload.data(), window_bytes), "no put");
          signal(0, Signal::user);
          await_signal(0, Signal::user, way);
        }
        close(0, way);
      },
      [=] {
        for (int i = 0; i < num_rounds; ++i) {
          await_signal(1, Signal::user, way);
          const std::byte* at = memory[1];
          require(at[0] == mark(i) && at[window_bytes - 1] == mark(i), "a torn payload");
          signal(1, Signal::user);
        }
        close(1, way);
      },
  };
  return {name, program};
}

}  // namespace

std::vector<Case> window_cases(int depth) {
  arena = Arena::create(size_t{1} << 20);
  for (std::byte*& one : memory) {
    one = arena->allocate(window_bytes);
    share(one, window_bytes, 8);
  }
  return {puts("puts into windows, ranks spin", depth, Way::spins),
          puts("puts into windows, ranks sleep", depth, Way::sleeps)};
}

}  // namespace hccl::check
