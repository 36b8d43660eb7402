// Random calls from two threads of every rank, in the foreground and in the background, over shared
// memory, TCP and both, with slots so few and small that lanes are full most of the time; and over
// connections that break.
//
// `test_soak [seconds [seed]]`: ten seconds unless told otherwise.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "repair.h"

namespace hccl::test {
namespace {

using Random = std::mt19937;
using std::chrono::microseconds;
using std::chrono::seconds;

constexpr auto call_timeout = seconds(60);
constexpr int num_collectives = 24;  // per round
constexpr int num_transfers = 6;     // per round, to every rank

size_t pick(Random& random, size_t limit) { return random() % limit; }

// Many are tiny; some end just beside a limit.
size_t random_size(Random& random) {
  const size_t limits[] = {1, 22, 88, 4096, 4097, 16384, 16385, 70000};
  size_t limit = limits[pick(random, 8)];
  return pick(random, 3) ? pick(random, limit + 1) : limit;
}

struct Layout {
  const char* name;
  std::vector<int> nodes;
  size_t slot_bytes;
  int num_slots;
  decltype(connect_loopback)* connect;
  const Faults* faults;
};

constexpr Faults faults = {.delay = 0.001, .drop = 0.0005, .duplicate = 0.0005, .truncate = 0.0005,
                           .reset = 0.002, .longest_delay_s = 0.001};

template <int num_paths, const Faults* kind>
void connect(const std::vector<std::shared_ptr<Communicator>>& ranks,
             const std::vector<int>& nodes, int num_lanes) {
  connect_by_tcp(ranks, nodes, num_lanes, num_paths, kind);
}

// A collective: what it is follows from the round and its number, on every rank alike.
struct Shape {
  size_t count;
  DType dtype;
  bool uses_mesh;

  explicit Shape(unsigned seed) {
    Random random(seed);
    const DType dtypes[] = {DType::float32, DType::uint8, DType::int64};
    count = random_size(random);
    dtype = dtypes[pick(random, 3)];
    uses_mesh = pick(random, 2) != 0;
  }
};

template <typename T>
void write(std::vector<std::byte>& bytes, size_t i, size_t value) {
  T typed = static_cast<T>(value);
  std::memcpy(bytes.data() + i * sizeof(T), &typed, sizeof(T));
}

// The elements of `rank`, or the sum of all ranks' for rank == n.
std::vector<std::byte> elements(const Shape& shape, unsigned seed, size_t rank, size_t n) {
  std::vector<std::byte> bytes(shape.count * size_of(shape.dtype));
  for (size_t i = 0; i < shape.count; ++i) {
    auto value_of = [&](size_t r) { return (i * 7 + r * 3 + seed) % 11; };
    size_t value = rank < n ? value_of(rank) : 0;
    for (size_t r = 0; rank == n && r < n; ++r) value += value_of(r);
    switch (shape.dtype) {
      case DType::float32: write<float>(bytes, i, value); break;
      case DType::uint8: write<uint8_t>(bytes, i, value); break;
      default: write<int64_t>(bytes, i, value); break;
    }
  }
  return bytes;
}

std::vector<std::byte> message(size_t from, size_t to, size_t tag, unsigned seed) {
  Random random(seed + static_cast<unsigned>((from * 31 + to) * 31 + tag));
  std::vector<std::byte> bytes(random_size(random));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Waits in one of the ways in which people wait.
void finish(Communicator& mine, const RequestPtr& request, Random& random) {
  Patience patience;
  switch (pick(random, 3)) {
    case 0: CHECK(mine.wait(request, in(call_timeout), no_interrupt)); break;
    case 1:
      while (!request->is_done()) patience.turn();
      break;
    case 2:
      while (!mine.wait(request, Clock::now() + microseconds(pick(random, 100)), no_interrupt)) {
        patience.turn();
      }
      break;
  }
  CHECK(request->failure.kind == FailureKind::none);
}

class Rank {
 public:
  Rank(World& world, int me, unsigned seed)
      : mine_(*world.ranks[static_cast<size_t>(me)]),
        me_(static_cast<size_t>(me)),
        n_(static_cast<size_t>(world.size())),
        seed_(seed) {}

  void run_collectives() {
    Random random(seed_ * 7 + static_cast<unsigned>(me_));
    std::vector<std::vector<std::byte>> data(num_collectives);
    std::vector<RequestPtr> requests(num_collectives);
    for (unsigned i = 0; i < num_collectives; ++i) {
      Shape shape(seed_ + i);
      data[i] = elements(shape, seed_, me_, n_);
      requests[i] = request_of(shape, data[i]);
      if (pick(random, 2)) {
        mine_.start(requests[i]);
      } else {
        mine_.run(requests[i], no_interrupt);
      }
    }
    for (unsigned i = 0; i < num_collectives; ++i) {
      finish(mine_, requests[i], random);
      CHECK(data[i] == elements(Shape(seed_ + i), seed_, n_, n_));
    }
  }

  // Every rank sends to every rank, itself included, and receives in another order.
  void run_transfers() {
    Random random(seed_ * 13 + static_cast<unsigned>(me_));
    std::vector<Transfer> transfers;
    for (size_t peer = 0; peer < n_; ++peer) {
      for (size_t tag = 0; tag < num_transfers; ++tag) {
        transfers.push_back({RequestKind::send, peer, tag, message(me_, peer, tag, seed_), {}});
        auto expected = message(peer, me_, tag, seed_);
        std::vector<std::byte> empty(expected.size());
        transfers.push_back({RequestKind::recv, peer, tag, std::move(empty), {}});
      }
    }
    std::shuffle(transfers.begin(), transfers.end(), random);
    for (Transfer& one : transfers) {
      one.request = transfer(one.kind, one.bytes, static_cast<int>(one.peer), one.tag, call_timeout);
      mine_.start(one.request);
    }
    std::shuffle(transfers.begin(), transfers.end(), random);
    for (Transfer& one : transfers) {
      finish(mine_, one.request, random);
      if (one.kind == RequestKind::send) continue;
      CHECK(one.bytes == message(one.peer, me_, one.tag, seed_));
    }
  }

 private:
  struct Transfer {
    RequestKind kind;
    size_t peer;
    size_t tag;
    std::vector<std::byte> bytes;
    RequestPtr request;
  };

  RequestPtr request_of(const Shape& shape, std::vector<std::byte>& data) const {
    int me = static_cast<int>(me_), n = static_cast<int>(n_);
    auto request = std::make_shared<Request>();
    request->deadline = in(call_timeout);
    request->plan = shape.uses_mesh ? mesh(me, n) : one_shot(me, n);
    request->call.plan = request->plan.get();
    request->call.data = {data.data(), shape.count};
    request->call.dtype = shape.dtype;
    request->call.fingerprint = uint64_t{shape.count} << 16;
    return request;
  }

  Communicator& mine_;
  const size_t me_, n_;
  const unsigned seed_;
};

void soak(const Layout& layout, Deadline until, unsigned seed) {
  World world(layout.nodes, layout.slot_bytes, layout.num_slots, layout.connect);
  Repairer repairer(world.ranks, layout.faults);
  int num_rounds = 0;
  for (; Clock::now() < until; ++num_rounds, seed += 1000) {
    world.run([&](int me) {
      try {
        Rank rank(world, me, seed);
        std::thread other([&] { rank.run_transfers(); });
        rank.run_collectives();
        other.join();
      } catch (const CommunicatorFailed& error) {
        std::fprintf(stderr, "%s, rank %d, seed %u: %s\n", layout.name, me, seed, error.what());
        std::abort();
      }
    });
  }
  std::printf("%s: %d rounds, %d connections replaced\n", layout.name, num_rounds,
              static_cast<int>(repairer.num_replaced()));
  std::fflush(stdout);
}

}  // namespace
}  // namespace hccl::test

int main(int argc, char** argv) {
  using namespace hccl::test;
  double limit_s = argc > 1 ? std::stod(argv[1]) : 10.0;
  unsigned seed = argc > 2 ? static_cast<unsigned>(std::stoul(argv[2])) : 1;
  const Layout layouts[] = {
      {"shared memory", {0, 0, 0}, 4096, 3, connect<1, nullptr>, nullptr},
      {"TCP", {0, 1, 2}, 4096, 1, connect<1, nullptr>, nullptr},
      {"TCP, three paths", {0, 1, 2}, 4096, 1, connect<3, nullptr>, nullptr},
      {"TCP, faulty", {0, 1, 2}, 4096, 1, connect<1, &faults>, &faults},
      {"TCP, two faulty paths", {0, 1, 2}, 32768, 1, connect<2, &faults>, &faults},
      {"both", {0, 0, 1, 1}, 4096, 2, connect<1, nullptr>, nullptr},
      {"both, larger slots", {0, 0, 1, 1, 1}, 32768, 4, connect<1, nullptr>, nullptr},
      {"both, two faulty paths", {0, 0, 1, 1}, 4096, 2, connect<2, &faults>, &faults},
  };
  auto slice = std::chrono::duration<double>(limit_s / std::size(layouts));
  for (const Layout& layout : layouts) {
    soak(layout, hccl::Clock::now() + std::chrono::duration_cast<std::chrono::milliseconds>(slice),
         seed);
  }
}
