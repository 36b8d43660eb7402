// The lane under a software queue pair, under its lock; it is gone once the queue pair has failed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lanes/tcp.h"
#include "verbs/software/queue_pair.h"

namespace hccl {

class LaneUnderQueuePair final : public ReplaceableLane {
 public:
  explicit LaneUnderQueuePair(std::shared_ptr<QueuePair> pair) : pair_(std::move(pair)) {}

  size_t num_paths() const override { return 1; }
  int fd(size_t path) const override {
    return ask(-1, [&](auto& lane) { return lane.fd(path); });
  }
  uint64_t generation(size_t path) const override {
    return ask(uint64_t{1}, [&](auto& lane) { return lane.generation(path); });
  }
  void adopt(size_t path, std::shared_ptr<Stream> connection) override {
    bool used = ask(false, [&](auto& lane) { return lane.adopt(path, connection), true; });
    if (!used) connection->close();
    pair_->wake();
  }
  void lose(size_t path, const std::string& why) override {
    ask(0, [&](auto& lane) { return lane.lose(path, why), 0; });
    pair_->wake();
  }
  void peer_has_ended() override {
    ask(0, [&](auto& lane) { return lane.peer_has_ended(), 0; });
    pair_->wake();
  }
  void poll() override {
    ask(0, [&](auto& lane) { return lane.poll(), 0; });
  }
  bool owes() const override {
    return ask(false, [](auto& lane) { return lane.owes(); });
  }
  bool is_open() const override {
    return ask(false, [](auto& lane) { return lane.is_open(); });
  }
  bool closed_by_peer() const override {
    return ask(false, [](auto& lane) { return lane.closed_by_peer(); });
  }
  std::vector<PathTrouble> troubles(const std::vector<double>& unanswered_s) const override {
    return ask(std::vector<PathTrouble>(), [&](auto& lane) { return lane.troubles(unanswered_s); });
  }

 private:
  template <class Answer, class Ask>
  Answer ask(Answer otherwise, Ask ask) const {
    pair_->with_lane([&](Lane& lane) { otherwise = ask(static_cast<TcpLane&>(lane)); });
    return otherwise;
  }

  const std::shared_ptr<QueuePair> pair_;
};

}  // namespace hccl
