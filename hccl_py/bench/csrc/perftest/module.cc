// The loops that hccl-perftest times, the extension module `_perftest`: over a queue pair, and what
// they are compared with. They release the GIL. Those that wait for the other end raise when a
// request fails, nothing arrives for 30 s, or a signal's handler raises.
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "bindings/system_errors.h"
#include "verbs/completion_queue.h"
#include "verbs/rdma/queue_pair.h"
#include "verbs/software/queue_pair.h"
#include "verbs/verbs.h"

namespace nb = nanobind;

namespace hccl {

namespace {

// One end of a test. Both ends call the same function with the same numbers.
//
// Its buffer has two halves of `size` bytes: what it sends, and what it receives.
struct PerftestEnd {
  std::shared_ptr<QueuePairInterface> pair;
  std::shared_ptr<CompletionQueue> queue;  // of sends and RECVs
  uint64_t address = 0;
  uint32_t lkey = 0;
  uint64_t remote_address = 0;  // of the peer's buffer
  uint32_t rkey = 0;
  size_t size = 0;
  CompletionQueue::Interrupt interrupt;
};

constexpr auto longest_wait = std::chrono::seconds(30);
// One request in so many is signaled: a device frees the slots of the others only with it.
constexpr size_t signal_period = 16;
// RECVs that are posted ahead, so that a new one is posted only after the answer was sent.
constexpr size_t recvs_ahead = 4;

double microseconds(VerbsClock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// Takes completions until one of a RECV (`recv`), or one of a send; returns the number of the other
// kind before it.
size_t await(PerftestEnd& end, bool recv, VerbsClock::time_point deadline) {
  Completion completion;
  for (size_t num_others = 0;; ++num_others) {
    if (end.queue->wait({&completion, 1}, deadline, end.interrupt) == 0) {
      throw std::runtime_error("no completion for 30 s");
    }
    if (completion.status != Status::success) {
      throw std::runtime_error("a work request ended with status " +
                               std::to_string(static_cast<int>(completion.status)));
    }
    bool is_recv = completion.opcode >= Opcode::recv;
    if (is_recv == recv) return num_others;
  }
}

void await(PerftestEnd& end, bool recv) { await(end, recv, VerbsClock::now() + longest_wait); }

ScatterGather half(const PerftestEnd& end, bool second) {
  return {end.address + (second ? end.size : 0), static_cast<uint32_t>(end.size), end.lkey};
}

void post(PerftestEnd& end, Opcode opcode, uint32_t flags) {
  ScatterGather piece = half(end, opcode == Opcode::rdma_read);
  SendRequest request;
  request.opcode = opcode;
  request.flags = flags;
  request.rkey = end.rkey;
  // A write goes to the peer's second half; a read takes its first.
  request.remote_address = end.remote_address + (opcode == Opcode::rdma_write ? end.size : 0);
  request.pieces = {&piece, 1};
  end.pair->post_send(request);
}

void post_recv(PerftestEnd& end) {
  ScatterGather piece = half(end, true);
  end.pair->post_recv({0, {&piece, 1}});
}

// Posts the requests of a ping-pong, of which a few are signaled.
class Requests {
 public:
  Requests(PerftestEnd& end, Opcode opcode, size_t iterations)
      : end_(end), opcode_(opcode), iterations_(iterations) {
    if (end.size <= end.pair->max_inline()) flags_ = send_inline;
  }

  void post_next() {
    ++num_posted_;
    bool signaled = num_posted_ % signal_period == 0 || num_posted_ == iterations_;
    num_signaled_ += signaled;
    post(end_, opcode_, signaled ? flags_ | send_signaled : flags_);
  }

  void note_ended(size_t number) { num_ended_ += number; }

  void await_rest() {
    for (; num_ended_ < num_signaled_; ++num_ended_) await(end_, false);
  }

 private:
  PerftestEnd& end_;
  Opcode opcode_;
  size_t iterations_;
  uint32_t flags_ = 0;
  size_t num_posted_ = 0, num_signaled_ = 0, num_ended_ = 0;
};

[[noreturn]] void throw_errno(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

void set_blocking(int fd, bool blocking) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) != 0) {
    throw_errno("fcntl");
  }
  timeval wait{.tv_sec = 0, .tv_usec = 15'000};
  for (int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (setsockopt(fd, SOL_SOCKET, option, &wait, sizeof wait) != 0) throw_errno("setsockopt");
  }
}

void check_signals() {
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Ends a wait that polls: looks for signals and at the time once in `period` turns.
class Watch {
 public:
  explicit Watch(uint32_t period) : period_(period) {}

  void turn() {
    if (++turns_ % period_ != 0) return;
    check_signals();
    auto now = VerbsClock::now();
    if (turns_ == period_) begin_ = now;
    if (now > begin_ + longest_wait) {
      throw std::runtime_error("nothing came from the other end for 30 s");
    }
  }

 private:
  uint32_t period_, turns_ = 0;
  VerbsClock::time_point begin_;
};

// Transfers all bytes by `call`, ::send or ::recv.
template <typename Call>
void transfer_all(const char* name, const Call& call, int fd, uint64_t data, size_t size) {
  for (Watch watch(64); size > 0;) {
    ssize_t done = call(fd, reinterpret_cast<std::byte*>(data), size, MSG_NOSIGNAL);
    if (done == 0) throw std::runtime_error("the peer closed its socket");
    if (done < 0 && errno != EAGAIN && errno != EINTR) throw_errno(name);
    if (done < 0) {
      watch.turn();
      continue;
    }
    data += static_cast<size_t>(done);
    size -= static_cast<size_t>(done);
  }
}

void send_all(int fd, uint64_t data, size_t size) { transfer_all("send", ::send, fd, data, size); }

void receive_all(int fd, uint64_t data, size_t size) {
  transfer_all("recv", ::recv, fd, data, size);
}

// Runs `work(index)` on a new thread pinned to each core; the caller's pinning stays. All begin at
// once, or after 20 ms where other programs occupy a core.
template <typename Work>
void run_pinned(const std::vector<int>& cores, const Work& work) {
  std::atomic<int> error{0};
  std::atomic<size_t> num_ready{0};
  auto latest = VerbsClock::now() + std::chrono::milliseconds(20);
  std::vector<std::thread> threads;
  for (size_t number = 0; number < cores.size(); ++number) {
    threads.emplace_back([&, number] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cores[number], &one);
      if (int failed = pthread_setaffinity_np(pthread_self(), sizeof one, &one)) error = failed;
      ++num_ready;
      while (num_ready < cores.size() && VerbsClock::now() < latest) sched_yield();
      if (error == 0) work(number);
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error != 0) throw std::system_error(error, std::generic_category(), "pin a thread to a core");
}

// Sends messages back and forth; returns microseconds of each way, on the end that starts.
std::vector<double> send_ping_pong(PerftestEnd& end, size_t iterations, bool starts) {
  std::vector<double> times;
  times.reserve(iterations);
  Requests requests(end, Opcode::send, iterations);
  for (size_t i = 0; i < std::min(iterations, recvs_ahead); ++i) post_recv(end);
  auto begin = VerbsClock::now();
  for (size_t i = 0; i < iterations; ++i) {
    // From the time of the last message: reading the clock again would cost time.
    auto deadline = begin + longest_wait;
    if (!starts) requests.note_ended(await(end, true, deadline));
    requests.post_next();
    if (i + recvs_ahead < iterations) post_recv(end);
    if (starts) requests.note_ended(await(end, true, deadline));
    if (!starts && i % 4096 != 0) continue;
    auto now = VerbsClock::now();
    if (starts) times.push_back(microseconds(now - begin) / 2);
    begin = now;
  }
  requests.await_rest();
  return times;
}

// The same with RDMA_WRITE: each end waits for the last byte in its memory to change.
std::vector<double> write_ping_pong(PerftestEnd& end, size_t iterations, bool starts) {
  std::vector<double> times;
  times.reserve(iterations);
  Requests requests(end, Opcode::rdma_write, iterations);
  // `*theirs` is written by this thread while it polls, or by the device's thread under the queue
  // pair's lock, which the next poll takes too.
  volatile auto* mine = reinterpret_cast<unsigned char*>(end.address) + end.size - 1;
  volatile auto* theirs = mine + end.size;
  auto begin = VerbsClock::now();
  for (size_t i = 0; i < iterations; ++i) {
    auto mark = static_cast<unsigned char>(i % 251 + 1);
    auto await_mark = [&] {
      Completion completion;
      for (Watch watch(65536); *theirs != mark; watch.turn()) {
        if (end.queue->poll({&completion, 1}) > 0) {
          if (completion.status != Status::success) throw std::runtime_error("a write failed");
          requests.note_ended(1);
        }
      }
    };
    if (!starts) await_mark();
    *mine = mark;
    requests.post_next();
    if (starts) await_mark();
    auto now = VerbsClock::now();
    times.push_back(microseconds(now - begin) / 2);
    begin = now;
  }
  requests.await_rest();
  return times;
}

// Microseconds of each RDMA_READ, one after the other. The other end does nothing.
std::vector<double> read_one_by_one(PerftestEnd& end, size_t iterations) {
  std::vector<double> times;
  times.reserve(iterations);
  for (size_t i = 0; i < iterations; ++i) {
    auto begin = VerbsClock::now();
    post(end, Opcode::rdma_read, send_signaled);
    await(end, false);
    times.push_back(microseconds(VerbsClock::now() - begin));
  }
  return times;
}

// Seconds for `iterations` requests, at most `window` in flight, until the last is acknowledged. A
// SEND needs sink() on the other end.
double stream(PerftestEnd& end, int opcode, size_t iterations, size_t window) {
  auto begin = VerbsClock::now();
  size_t num_ended = 0;
  for (size_t i = 0; i < iterations; ++i) {
    for (; i - num_ended >= window; ++num_ended) await(end, false);
    post(end, static_cast<Opcode>(opcode), send_signaled);
  }
  for (; num_ended < iterations; ++num_ended) await(end, false);
  return std::chrono::duration<double>(VerbsClock::now() - begin).count();
}

void sink(PerftestEnd& end, size_t iterations, size_t window) {
  size_t num_posted = 0;
  for (; num_posted < std::min(iterations, window); ++num_posted) post_recv(end);
  for (size_t i = 0; i < iterations; ++i) {
    await(end, true);
    if (num_posted < iterations) {
      post_recv(end);
      ++num_posted;
    }
  }
}

// Microseconds of each way over a plain socket, which both ends poll as queue pairs do.
std::vector<double> socket_ping_pong(int fd, uint64_t buffer, size_t size, size_t iterations,
                                     bool starts) {
  set_blocking(fd, false);
  std::vector<double> times;
  times.reserve(iterations);
  auto begin = VerbsClock::now();
  for (size_t i = 0; i < iterations; ++i) {
    if (starts) send_all(fd, buffer, size);
    receive_all(fd, buffer + size, size);
    if (!starts) send_all(fd, buffer, size);
    auto now = VerbsClock::now();
    times.push_back(microseconds(now - begin) / 2);
    begin = now;
  }
  return times;
}

// Seconds for `iterations` messages over a plain blocking socket, until the receiver's last byte.
double socket_stream(int fd, uint64_t buffer, size_t size, size_t iterations, bool sends) {
  set_blocking(fd, true);
  std::byte finished{};
  auto begin = VerbsClock::now();
  for (size_t i = 0; i < iterations; ++i) {
    sends ? send_all(fd, buffer, size) : receive_all(fd, buffer + size, size);
  }
  auto at = reinterpret_cast<uint64_t>(&finished);
  sends ? receive_all(fd, at, 1) : send_all(fd, at, 1);
  return std::chrono::duration<double>(VerbsClock::now() - begin).count();
}

// Seconds for `iterations` copies by memcpy from one half of the buffer to the other.
double copy_stream(uint64_t buffer, size_t size, size_t iterations) {
  auto* source = reinterpret_cast<std::byte*>(buffer);
  auto begin = VerbsClock::now();
  for (size_t i = 0; i < iterations; ++i) {
    std::memcpy(source + size, source, size);
    asm volatile("" : : "r"(source) : "memory");  // or the compiler would drop all but one
  }
  return std::chrono::duration<double>(VerbsClock::now() - begin).count();
}

// Nanoseconds that a cache line takes from one core to the other: half of each round trip between
// two threads pinned to them, for `duration_s`. Throws std::system_error if this process may not
// use a core.
std::vector<double> core_to_core_ns(int core, int other, double duration_s) {
  struct alignas(64) {
    std::atomic<uint64_t> turn{0};  // even: to be answered by `core`; odd: by `other`
  } line;
  std::vector<double> times;
  std::chrono::duration<double> duration(duration_s);
  run_pinned({core, other}, [&](size_t mine) {
    auto begin = VerbsClock::now(), first = begin;
    for (auto now = begin; now - first < duration; now = VerbsClock::now()) {
      uint64_t turn = line.turn.load(std::memory_order_acquire);  // pairs with the store below
      if (turn % 2 != mine) continue;
      if (mine == 0 && turn > 0) times.push_back(microseconds(now - begin) * 1e3 / 2);
      begin = now;
      line.turn.store(turn + 1, std::memory_order_release);
    }
  });
  return times;
}

// Nanoseconds that a thread pinned to each core takes for the same additions, all threads at once:
// medians over `duration_s`. A core that shares its arithmetic units with another thread takes up
// to twice as long. Throws as above.
std::vector<double> compute_ns(const std::vector<int>& cores, double duration_s) {
  constexpr int rounds = 1000;
  std::vector<double> medians(cores.size());
  std::chrono::duration<double> duration(duration_s);
  run_pinned(cores, [&](size_t mine) {
    std::array<uint64_t, 6> numbers{};  // more than a core can add to at once
    std::vector<double> times;
    auto first = VerbsClock::now(), begin = first;
    do {
      for (int i = 0; i < rounds; ++i) {
        for (uint64_t& number : numbers) {
          number += static_cast<uint64_t>(i);
          asm volatile("" : "+r"(number));  // or the compiler would find a formula for the sum
        }
      }
      auto now = VerbsClock::now();
      times.push_back(microseconds(now - begin) * 1e3);
      begin = now;
    } while (begin - first < duration);
    auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    medians[mine] = *middle;
  });
  return medians;
}

using Memory = std::tuple<uint64_t, uint32_t>;  // address and key

template <class Pair>
void make_end(PerftestEnd* end, std::shared_ptr<Pair> pair, std::shared_ptr<CompletionQueue> queue,
              Memory local, Memory remote) {
  auto [address, lkey] = local;
  auto [remote_address, rkey] = remote;
  new (end) PerftestEnd{std::move(pair), std::move(queue), address, lkey, remote_address, rkey, 0,
                        check_signals};
}

NB_MODULE(_perftest, module) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::register_exception_translator(raise_system_error);
  nb::class_<PerftestEnd>(module, "PerftestEnd")
      .def("__init__", &make_end<QueuePair>)
      .def("__init__", &make_end<RdmaQueuePair>)
      .def_rw("size", &PerftestEnd::size)
      .def("send_ping_pong", &send_ping_pong, Released())
      .def("write_ping_pong", &write_ping_pong, Released())
      .def("read_one_by_one", &read_one_by_one, Released())
      .def("stream", &stream, Released())
      .def("sink", &sink, Released());
  module.def("socket_ping_pong", &socket_ping_pong, Released());
  module.def("socket_stream", &socket_stream, Released());
  module.def("copy_stream", &copy_stream, Released());
  module.def("core_to_core_ns", &core_to_core_ns, Released());
  module.def("compute_ns", &compute_ns, Released());
}

}  // namespace

}  // namespace hccl
