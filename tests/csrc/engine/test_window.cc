// Windows: what is put lies where it should before its signal is seen, directly and by messages.
#include "engine/window.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "ranks.h"

namespace hccl::test {
namespace {

std::vector<std::byte> bytes(size_t count, int first) {
  std::vector<std::byte> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return made;
}

RequestPtr one_sided(RequestKind kind, const std::shared_ptr<Window>& window, int peer,
                     std::vector<std::byte>& data, uint64_t offset = 0) {
  auto request = transfer(kind, data, peer, 7);
  request->window = window;
  request->offset = offset;
  return request;
}

}  // namespace

HCCL_TEST(messages_put_and_signal_without_a_call_of_the_target) {
  constexpr size_t count = 700'001, offset = 11;
  World world({0, 1});
  std::vector<std::byte> memory(count + 2 * offset, std::byte{0xaa}), none;
  auto target = world.ranks[1]->make_window(memory);
  world.ranks[1]->open_window(target, 7, true);
  auto source = world.ranks[0]->make_window(none);
  world.ranks[0]->open_window(source, 7, false);
  CHECK(!source->maps(1) && !source->signal(1, Signal::user));
  auto data = bytes(count, 3);
  world.ranks[0]->run(one_sided(RequestKind::put, source, 1, data, offset), no_interrupt);
  world.ranks[0]->run(one_sided(RequestKind::signal, source, 1, none), no_interrupt);
  CHECK(eventually([&] { return target->take_signal(0, Signal::user); }));
  CHECK(!target->take_signal(0, Signal::user));
  CHECK(std::equal(data.begin(), data.end(), memory.begin() + offset));
  for (size_t i = 0; i < offset; ++i) {
    CHECK(memory[i] == std::byte{0xaa} && memory[offset + count + i] == std::byte{0xaa});
  }
  target->withdraw(true);  // what comes now is dropped
  auto late = bytes(100, 1);
  world.ranks[0]->run(one_sided(RequestKind::put, source, 1, late), no_interrupt);
  std::vector<std::byte> received(1), sent(1, std::byte{5});
  world.run([&](int rank) {
    auto kind = rank == 0 ? RequestKind::send : RequestKind::recv;
    world.ranks[static_cast<size_t>(rank)]->run(
        transfer(kind, rank == 0 ? sent : received, 1 - rank, 1), no_interrupt);
  });
  CHECK(received == sent && memory[0] == std::byte{0xaa});
  source->withdraw(true);
}

HCCL_TEST(nonblocking_signal_waits_for_the_puts_before_it) {
  constexpr size_t count = 300'000;
  World world({0, 1});
  std::vector<std::byte> memory(3 * count), none;
  auto target = world.ranks[1]->make_window(memory);
  world.ranks[1]->open_window(target, 7, true);
  auto source = world.ranks[0]->make_window(none);
  world.ranks[0]->open_window(source, 7, false);
  std::vector<std::vector<std::byte>> parts;
  std::vector<RequestPtr> requests;
  for (int part = 0; part < 3; ++part) parts.push_back(bytes(count, part));
  for (size_t part = 0; part < 3; ++part) {
    requests.push_back(one_sided(RequestKind::put, source, 1, parts[part], part * count));
  }
  requests.push_back(one_sided(RequestKind::signal, source, 1, none));
  auto waits = one_sided(RequestKind::wait_signal, target, 0, none);
  world.ranks[0]->start(requests);
  world.ranks[1]->run(waits, no_interrupt);
  for (size_t part = 0; part < 3; ++part) {
    CHECK(std::equal(parts[part].begin(), parts[part].end(), memory.begin() + part * count));
  }
  for (const auto& request : requests) world.ranks[0]->wait(request, in(seconds(60)), no_interrupt);
  for (const auto& window : {source, target}) window->withdraw(true);
}

HCCL_TEST(a_wait_without_a_signal_times_out_and_names_the_peer) {
  World world({0, 1});
  std::vector<std::byte> none;
  auto window = world.ranks[0]->make_window(none);
  world.ranks[0]->open_window(window, 7, false);
  auto request = one_sided(RequestKind::wait_signal, window, 1, none);
  request->deadline = in(milliseconds(20));
  Failure failure = failure_of(*world.ranks[0], request);
  CHECK(failure.cause == Cause::timed_out && failure.rank == 1);
  CHECK(window->signal(0, Signal::user));  // this rank's own
  world.ranks[0]->run(one_sided(RequestKind::wait_signal, window, 0, none), no_interrupt);
  window->withdraw(true);
}

HCCL_TEST(direct_puts_are_seen_with_their_signals) {
  constexpr size_t count = 4096;
  constexpr int rounds = 200;
  auto arena = Arena::create(size_t{1} << 24);
  if (!arena->window()) return;  // not allowed here
  auto windows = std::make_shared<Windows>();
  std::shared_ptr<Window> ends[2];
  std::byte* memory[2];
  for (int rank = 0; rank < 2; ++rank) {
    memory[rank] = arena->allocate(count);
    ends[rank] = std::make_shared<Window>(arena, rank, 2, std::span(memory[rank], count));
    Windows::open(windows, *ends[rank], static_cast<uint64_t>(rank), false);
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Window& other = *ends[1 - rank];
    CHECK(ends[rank]->add_peer(1 - rank, arena->window(), nullptr, count, *other.memory_offset(),
                               *other.signals_offset()));
    CHECK(!ends[rank]->put(1 - rank, count, memory[rank], 1));
    CHECK(!ends[rank]->put(1 - rank, ~uint64_t{0}, memory[rank], 2));
    CHECK(ends[rank]->put(1 - rank, count, memory[rank], 0));
  }
  auto play = [&](int rank) {
    for (int round = 0; round < rounds; ++round) {
      auto data = bytes(count, round + rank);
      CHECK(ends[rank]->put(1 - rank, 0, data.data(), count));
      CHECK(ends[rank]->signal(1 - rank, Signal::user));
      while (!ends[rank]->take_signal(1 - rank, Signal::user)) std::this_thread::yield();
      auto expected = bytes(count, round + 1 - rank);
      CHECK(std::memcmp(memory[rank], expected.data(), count) == 0);
      CHECK(ends[rank]->signal(1 - rank, Signal::closing));
      while (!ends[rank]->take_signal(1 - rank, Signal::closing)) std::this_thread::yield();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  size_t before = arena->num_allocated();
  ends[0]->withdraw(true);
  ends[1]->withdraw(false);  // its memory is not allocated again
  CHECK(!ends[0]->put(0, 0, memory[0], 1) && !ends[0]->take_signal(0, Signal::user));
  CHECK(arena->is_retired(memory[1]) && !arena->is_retired(memory[0]));
  for (auto& end : ends) end = nullptr;
  CHECK(arena->num_allocated() < before);
  for (std::byte* one : memory) arena->release(one);
}

}  // namespace hccl::test
