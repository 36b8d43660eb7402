// Ends of lanes over an RDMA device of this machine. HCCL_TEST_RDMA names it: DEVICE:GID_INDEX, as
// `rxe0:1`.
#pragma once

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "verbs/lane/lane_over_queue_pair.h"
#include "verbs/rdma/lane_end.h"

namespace hccl::test {

struct RdmaPort {
  std::string device;
  uint8_t gid_index;
  std::array<uint8_t, 16> gid;
};

// None where the variable is not set.
inline std::optional<RdmaPort> rdma_port() {
  const char* named = std::getenv("HCCL_TEST_RDMA");
  if (named == nullptr) return std::nullopt;
  std::string text = named;
  size_t colon = text.find(':');
  CHECK(colon != std::string::npos);
  RdmaPort port{text.substr(0, colon), static_cast<uint8_t>(std::stoi(text.substr(colon + 1))), {}};
  std::ifstream file("/sys/class/infiniband/" + port.device + "/ports/1/gids/" +
                     std::to_string(port.gid_index));
  std::string gid;
  file >> gid;
  std::erase(gid, ':');
  CHECK(gid.size() == 2 * port.gid.size());
  for (size_t i = 0; i < port.gid.size(); ++i) {
    const char* at = gid.data() + 2 * i;
    CHECK(std::from_chars(at, at + 2, port.gid[i], 16).ptr == at + 2);
  }
  return port;
}

// All memory, registered with a queue pair when it is first used.
class AllRegistered final : public RegisteredMemory {
 public:
  explicit AllRegistered(std::shared_ptr<QueuePairInterface> pair) : pair_(std::move(pair)) {}
  std::optional<Use> find(const std::byte* address, size_t num_bytes) override {
    constexpr uint32_t all = access_local_write | access_remote_write | access_remote_read;
    MemoryRegion region = pair_->register_memory({const_cast<std::byte*>(address), num_bytes}, all);
    return Use{region.address, region.lkey, region.rkey, hold};
  }

  const std::shared_ptr<int> hold = std::make_shared<int>();

 private:
  const std::shared_ptr<QueuePairInterface> pair_;
};

// One end of a lane, whose queue pairs are in INIT.
class RdmaEnd {
 public:
  RdmaEnd(const RdmaPort& port, size_t num_pairs, size_t slot_bytes)
      : gid_(port.gid), device_(std::make_shared<RdmaDevice>(port.device, route_of(port))) {
    auto domain = std::make_shared<RdmaDomain>(device_);
    auto nothing = RdmaRegistrations::create(std::move(domain), Arena::create(0), nullptr, 0);
    // A peer that is silent is given up after two seconds.
    RdmaLaneEnd::Patience patience{std::chrono::milliseconds(500), 3};
    end_ = std::make_unique<RdmaLaneEnd>(RdmaLaneEnd::Registrations{std::move(nothing)}, num_pairs,
                                         slot_bytes, patience);
  }

  // What the other end has to know, pair by pair.
  std::vector<RdmaPeer> describe() const {
    std::vector<RdmaPeer> all;
    for (const auto& pair : end_->pairs()) {
      all.push_back({gid_, pair->number(), pair->psn(), device_->mtu(), 0});
    }
    return all;
  }
  // From here on it can receive.
  void attach(const std::vector<RdmaPeer>& theirs) {
    for (size_t i = 0; i < theirs.size(); ++i) {
      end_->pairs()[i]->attach(theirs[i]);
      end_->pairs()[i]->modify(QueuePairState::rtr);
    }
  }
  // Once the other end can receive. Payloads of `min_registered_bytes` are not copied; 0: all are.
  std::unique_ptr<Lane> start(int peer, Statistics& statistics, size_t min_registered_bytes) {
    for (const auto& pair : end_->pairs()) pair->modify(QueuePairState::rts);
    auto lane = std::make_unique<LaneOverQueuePair>(peer, end_->take_slots(), statistics);
    if (min_registered_bytes > 0) {
      lane->set_registered({std::make_shared<AllRegistered>(end_->pairs()[0])},
                           LaneOverQueuePair::Traffic::collectives, min_registered_bytes);
    }
    return lane;
  }

 private:
  static RdmaRoute route_of(const RdmaPort& port) {
    RdmaRoute route;
    route.gid_index = port.gid_index;
    return route;
  }

  const std::array<uint8_t, 16> gid_;
  const std::shared_ptr<RdmaDevice> device_;
  std::unique_ptr<RdmaLaneEnd> end_;
};

}  // namespace hccl::test
