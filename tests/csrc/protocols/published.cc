// Faults of memory order that other libraries shipped, each a dozen lines. Their flags were
// volatile or plain, which on a weak processor is a relaxed access.
#include "cases.h"

#include <atomic>
#include <cstdio>

#include "base/descriptor.h"
#include "progress/sleep.h"

namespace hccl::check {

namespace {

constexpr auto none = std::memory_order_relaxed;

void release_fence_if(bool has_fence) {
  if (has_fence) std::atomic_thread_fence(std::memory_order_release);
}
void acquire_fence_if(bool has_fence) {
  if (has_fence) std::atomic_thread_fence(std::memory_order_acquire);
}

void await(const std::atomic<int>& flag, int value) {
  while (flag.load(none) != value) wait();
}

struct Shared {
  std::atomic<int> flag[2];
  int data[2];
  int buffers[2];
  int descriptor;  // which buffer
  int event;
};
Shared* memory;

using Threads = std::vector<std::function<void()>>;

// torchcomms 2318: the host polls a volatile flag that a kernel stores with release, and acquires
// nothing.
Threads polled_flag(bool is_mended) {
  return {[] {
            memory->data[0] = 1;
            memory->flag[0].store(1, std::memory_order_release);
          },
          [=] {
            await(memory->flag[0], 1);
            acquire_fence_if(is_mended);
            require(memory->data[0] == 1, "an old result");
          }};
}

// gloo 458, reverted by 490: an all_reduce over shared memory, whose states are volatile.
Threads volatile_states(bool is_mended) {
  auto rank = [=](int me) {
    memory->data[me] = 1 + me;
    release_fence_if(true);
    memory->flag[me].store(1, none);
    await(memory->flag[1 - me], 1);
    acquire_fence_if(is_mended);
    require(memory->data[0] + memory->data[1] == 3, "a wrong sum");
  };
  return {[=] { rank(0); }, [=] { rank(1); }};
}

// UCX 9819: the fence before a FIFO element's flag does not order normal memory, so the receiver
// finds an empty header: "got active message id 0".
Threads empty_header(bool is_mended) {
  return {[=] {
            memory->data[0] = 5;  // the message's id
            release_fence_if(is_mended);
            memory->flag[0].store(1, none);
          },
          [] {
            await(memory->flag[0], 1);
            acquire_fence_if(true);
            require(memory->data[0] == 5, "message id 0");
          }};
}

// UCX 9420: the receiver keeps a buffer, gives the element another one, and moves the tail, without
// a fence between them. The sender fills the buffer that the receiver keeps.
Threads kept_buffer(bool is_mended) {
  return {[=] {
            memory->descriptor = 1;
            release_fence_if(is_mended);
            memory->flag[1].store(1, none);  // the tail
            require(memory->buffers[0] == 0, "a kept buffer is written");
          },
          [] {
            await(memory->flag[1], 1);
            acquire_fence_if(true);
            memory->buffers[memory->descriptor] = 2;
          }};
}

// Open MPI 5536: the barrier of a fast box stands after the store of its header, not before.
Threads late_barrier(bool is_mended) {
  return {[=] {
            memory->data[0] = 1;
            release_fence_if(is_mended);
            memory->flag[0].store(1, none);
            release_fence_if(!is_mended);
          },
          [] {
            await(memory->flag[0], 1);
            acquire_fence_if(true);
            require(memory->data[0] == 1, "old data");
          }};
}

// A wake-up that only a timeout repairs: the flag of a sleeper and the count of messages, with
// release and acquire, as event counts are often written. Both sides read the old value.
Threads lost_wake_up(bool is_mended) {
  auto stored = is_mended ? std::memory_order_seq_cst : std::memory_order_release;
  auto loaded = is_mended ? std::memory_order_seq_cst : std::memory_order_acquire;
  return {[=] {
            memory->flag[0].store(1, stored);  // a message
            if (memory->flag[1].load(loaded) != 0) signal_event(Descriptor(memory->event));
          },
          [=] {
            memory->flag[1].store(1, stored);  // it is about to sleep
            if (memory->flag[0].load(loaded) != 0) return;
            Sleep sleep(Sleeper::caller);
            sleep.watch(memory->event);
            sleep.wait(1000);
          }};
}

Outcome outcome_of(const Threads& threads) {
  Program program;
  program.begin = [] {
    memory = new Shared{};
    memory->event = new_event();
    share(memory, sizeof *memory);
  };
  program.threads = threads;
  return explore(program);
}

bool finds(const char* name, const Threads& broken, const Threads& mended) {
  Outcome fault = outcome_of(broken), sound = outcome_of(mended);
  std::printf("%s: %s\n", name, fault.fault.c_str());
  if (!sound.fault.empty()) std::printf("  and mended: %s\n", sound.fault.c_str());
  return !fault.fault.empty() && sound.fault.empty() && sound.complete;
}

}  // namespace

bool finds_published_faults() {
  bool all = true;
  all &= finds("torchcomms 2318, a polled flag", polled_flag(false), polled_flag(true));
  all &= finds("gloo 490, volatile states", volatile_states(false), volatile_states(true));
  all &= finds("UCX 9819, an empty header", empty_header(false), empty_header(true));
  all &= finds("UCX 9420, a kept buffer", kept_buffer(false), kept_buffer(true));
  all &= finds("Open MPI 5536, a late barrier", late_barrier(false), late_barrier(true));
  all &= finds("a lost wake-up", lost_wake_up(false), lost_wake_up(true));
  return all;
}

}  // namespace hccl::check
