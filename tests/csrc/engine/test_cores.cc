// Which core a rank waits on.
#include "engine/driver/cores.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "ranks.h"

namespace hccl::test {
namespace {

// This thread may use two cores only, until it ends. Not two: there is nothing to choose.
class TwoCores {
 public:
  TwoCores() {
    sched_getaffinity(0, sizeof before_, &before_);
    CPU_ZERO(&both_);
    for (size_t core = 0; core < CPU_SETSIZE && CPU_COUNT(&both_) < 2; ++core) {
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &both_);
    }
    allow_both();
  }
  void allow_both() { sched_setaffinity(0, sizeof both_, &both_); }
  ~TwoCores() { sched_setaffinity(0, sizeof before_, &before_); }
  bool exist() const { return CPU_COUNT(&both_) == 2; }
  bool are_allowed() const {
    cpu_set_t now;
    return sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &both_);
  }
  int other(int core) const {
    for (size_t one = 0;; ++one) {
      if (CPU_ISSET(one, &both_) && static_cast<int>(one) != core) return static_cast<int>(one);
    }
  }

 private:
  cpu_set_t before_, both_;
};

void allow_only(int core) {
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(static_cast<size_t>(core), &only);
  sched_setaffinity(0, sizeof only, &only);
}

// A rank and its peers, which drive where the test says.
struct Node {
  Node(int rank, int num_ranks) : mine(Segment::create({num_ranks})), cores(rank, mine) {
    for (int peer = 0; peer < num_ranks; ++peer) {
      if (peer == rank) continue;
      peers.push_back(Segment::create({num_ranks}));
      cores.add_peer(peer, peers.back());
    }
  }
  // Puts a peer on this thread's core, which is returned.
  int join(size_t peer) {
    uint32_t core = mine->note_core();
    peers[peer]->header().core = core;
    return static_cast<int>(core) - 1;
  }
  int core() const { return static_cast<int>(mine->header().core) - 1; }

  std::shared_ptr<Segment> mine;
  std::vector<std::shared_ptr<Segment>> peers;
  Cores cores;
};

// Of the calling thread, in nanoseconds; 0: the kernel is older than 6.12.
uint64_t slice_of_this_thread() {
  uint64_t attributes[7] = {};  // the fourth is sched_runtime
  CHECK(syscall(SYS_sched_getattr, 0, attributes, 48, 0) == 0);
  return attributes[3];
}

HCCL_TEST(a_rank_that_waits_gets_a_short_slice) {
  uint64_t shortened = std::min<uint64_t>(slice_of_this_thread(), 100'000);
  for (int cores : {1, 2}) {
    World world({0, 0});
    for (auto& rank : world.ranks) rank->set_ranks_on_host(2, cores);
    world.run([&](int me) {
      std::vector<float> data(1000);
      for (int waits : {0, 1}) {  // a call whose peers are there waits for nobody
        const Counter& sleeps = world.ranks[static_cast<size_t>(waits)]->statistics().sleeps;
        while (me != waits && sleeps.value() == 0) std::this_thread::yield();
        world.ranks[static_cast<size_t>(me)]->run(all_reduce(mesh(me, 2), data), no_interrupt);
      }
      CHECK(slice_of_this_thread() == shortened);
    });
  }
}

HCCL_TEST(the_last_of_two_ranks_on_one_core_leaves_it) {
  TwoCores two;
  if (!two.exist()) return;
  Node node(1, 2);
  int shared = node.join(0);
  CHECK(!node.cores.settle());
  CHECK(node.core() == two.other(shared));
  CHECK(two.are_allowed());
}

HCCL_TEST(the_first_of_two_ranks_on_one_core_stays) {
  TwoCores two;
  if (!two.exist()) return;
  Node node(0, 2);
  int shared = node.join(0);
  // The scheduler may have moved it.
  CHECK(node.cores.settle() == (node.core() == shared));
}

// As mpirun binds them: each may use one core, and waits alone there.
HCCL_TEST(a_rank_that_is_bound_to_its_core_shares_it_with_nobody) {
  TwoCores two;
  if (!two.exist()) return;
  Node node(1, 2);
  int here = node.join(0);
  node.peers[0]->header().core = static_cast<uint32_t>(two.other(here)) + 1;
  allow_only(here);
  Cores bound(1, node.mine);
  bound.add_peer(0, node.peers[0]);
  bound.settle();  // only each so many waits look, where one core has two ranks
  CHECK(bound.settle());
  bound.set_usable(2);
  CHECK(!bound.settle());
}

HCCL_TEST(half_of_the_ranks_on_one_of_two_cores_is_fair) {
  TwoCores two;
  if (!two.exist()) return;
  Node node(3, 4);
  int shared = node.join(0);
  for (size_t peer : {1, 2}) {
    node.peers[peer]->header().core = static_cast<uint32_t>(two.other(shared)) + 1;
  }
  CHECK(node.cores.settle());
  CHECK(node.core() == shared);
  node.peers[1]->header().core = static_cast<uint32_t>(shared) + 1;
  for (int wait = 0; wait < 64; ++wait) node.cores.settle();
  CHECK(node.core() == two.other(shared));
}

// Its yields let the program that wants the core run for a time slice each.
HCCL_TEST(a_rank_goes_back_from_a_core_that_another_program_keeps_busy) {
  TwoCores two;
  if (!two.exist()) return;
  Node node(1, 2);
  int shared = node.join(0);
  std::atomic<int> num_busy{0};
  std::atomic<bool> ended{false};
  auto keep_busy = [&](int core) {
    allow_only(core);
    ++num_busy;
    while (!ended) {
    }
  };
  std::thread peer(keep_busy, shared), program(keep_busy, two.other(shared));
  while (num_busy != 2) sched_yield();
  auto moved_at = std::chrono::steady_clock::now();
  do {
    node.join(0);  // wherever it was moved meanwhile
    moved_at = std::chrono::steady_clock::now();
    node.cores.settle();
  } while (node.core() == static_cast<int>(node.peers[0]->header().core) - 1);
  int left = two.other(node.core());
  allow_only(node.core());  // else the scheduler may move it, beside other programs
  while (std::chrono::steady_clock::now() < moved_at + std::chrono::milliseconds(50)) sched_yield();
  two.allow_both();
  node.cores.settle();
  int ended_on = node.core();
  ended = true;
  peer.join();
  program.join();
  CHECK(ended_on == left, "on %d instead of %d\n", ended_on, left);
  CHECK(two.are_allowed());
}

}  // namespace
}  // namespace hccl::test
