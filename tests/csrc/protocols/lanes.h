#pragma once

#include "lanes/shared_memory/shm.h"
#include "node.h"

namespace hccl::check {

// The lanes between ranks 0, 1 and 2, each with a doorbell of its own.
struct Node {
  std::array<Statistics, 3> statistics;
  std::array<int, 3> events{};
  std::array<std::shared_ptr<Outbox>, 3> outboxes;
  std::array<std::array<std::shared_ptr<Doorbell>, 3>, 3> bells;
  std::array<std::array<std::unique_ptr<ShmLane>, 3>, 3> lanes;

  explicit Node(int num_ranks) {
    auto ranks = static_cast<size_t>(num_ranks);
    for (size_t i = 0; i < ranks; ++i) {
      events[i] = new_event();
      auto distance = std::make_shared<Distance>();
      distance->assume(false);
      outboxes[i] = std::make_shared<Outbox>(segments[i], 0, distance);
    }
    for (size_t i = 0; i < ranks; ++i) {
      for (size_t j = 0; j < ranks; ++j) {
        if (i != j) connect(i, j);
      }
    }
  }
  void connect(size_t i, size_t j) {
    const auto& theirs = segments[j];
    auto& bell = bells[i][j];
    bell = std::make_shared<Doorbell>(theirs, Descriptor(events[j]), statistics[i]);
    ShmLane::Ends ends{segments[i], theirs, int(i), int(j), bell, 0};
    lanes[i][j] = std::make_unique<ShmLane>(int(j), ends, outboxes[i], statistics[i]);
  }
  ShmLane& lane(int from, int to) { return *lanes[size_t(from)][size_t(to)]; }
  int event(int rank) { return events[size_t(rank)]; }
};

inline Node* node;

// ---- messages: the number of a message is in each of its bytes

inline std::byte mark(int number) { return static_cast<std::byte>(number + 1); }

inline Header header(size_t length) {
  return {.fingerprint = call, .length = static_cast<uint32_t>(length)};
}

}  // namespace hccl::check
