// A reliable connection of an RDMA device, with its own completion queue.
//
// The device's queue holds a completion for everything that can be posted, so it never overflows.
// The records of posted requests complete what a device leaves out: the request's own
// wr_id, its opcode after an error, and the length of a send.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/statistics.h"
#include "verbs/completion_queue.h"
#include "verbs/rdma/device.h"

namespace hccl {

// The peer's description, received over an authenticated connection.
struct RdmaPeer {
  std::array<uint8_t, 16> gid{};
  uint32_t qp_num = 0;
  uint32_t psn = 0;  // of its first packet
  size_t mtu = 0;
  uint16_t lid = 0;  // on InfiniBand
};

// Thread-safe.
class RdmaQueuePair final : public QueuePairInterface, public DrivenPair {
 public:
  // Without queues it is polled itself. Throws InvalidVerb, RdmaError.
  RdmaQueuePair(std::shared_ptr<RdmaDomain> domain, std::shared_ptr<CompletionQueue> send_queue,
                std::shared_ptr<CompletionQueue> recv_queue, const QueuePairAttributes& attributes);
  ~RdmaQueuePair() override;
  RdmaQueuePair(const RdmaQueuePair&) = delete;
  RdmaQueuePair& operator=(const RdmaQueuePair&) = delete;

  uint32_t number() const { return number_; }
  // Random, of its first packet.
  uint32_t psn() const { return psn_; }
  // The device's state.
  QueuePairState state();
  std::string reason() override;
  std::string trouble() override;
  void stop() override { modify(QueuePairState::error); }
  size_t max_inline() const override { return attributes_.max_inline; }
  const QueuePairStatistics& statistics() const { return statistics_; }

  // Names the peer; in INIT only. RTR needs it.
  void attach(const RdmaPeer& peer);
  // RESET -> INIT -> RTR -> RTS, and from anywhere to RESET and ERROR. Throws InvalidVerb,
  // RdmaError.
  void modify(QueuePairState to);
  // Changes retries, timers and path_mtu, not the sizes; before RTS.
  void set_attributes(const QueuePairAttributes& attributes);

  MemoryRegion register_memory(std::span<std::byte> memory, uint32_t access) override;
  const void* domain() const override { return domain_.get(); }
  void post_send(const SendRequest& request) override;
  void post_recv(const RecvRequest& request) override;
  size_t poll(std::span<Completion> out) override;
  std::vector<int> descriptors() override;
  bool prepare_sleep(Sleep& sleep) override;

  bool drive() override;
  bool announce_sleep(Sleep& sleep) override;
  void close() override;

 private:
  struct Posted {
    uint64_t wr_id;
    Opcode opcode;
    uint32_t length;
  };

  void check_limits() const;
  void create();
  void destroy();
  void step(QueuePairState to);
  void forget();
  void enter_error();
  void flush();
  size_t take(std::span<Completion> out);
  Completion translate(const ibv::Wc& wc);
  void arm();
  bool deliver();

  const std::shared_ptr<RdmaDomain> domain_;
  RdmaDevice& device_;
  const IbVerbs& verbs_;
  const std::shared_ptr<CompletionQueue> send_queue_, recv_queue_;  // both or none
  QueuePairAttributes attributes_;
  uint32_t number_ = 0;
  const uint32_t psn_;
  const Descriptor event_fd_;  // of the device; each queue pair watches a descriptor of its own
  QueuePairStatistics statistics_;

  std::mutex mutex_;  // guards all below; taken after the lock of a completion queue's pairs
  ibv::CompChannel* channel_ = nullptr;
  ibv::Cq* queue_ = nullptr;
  ibv::Qp* pair_ = nullptr;  // nullptr: closed
  QueuePairState state_ = QueuePairState::reset;
  RdmaPeer peer_;
  std::string reason_;
  // Requests, counted from 0; the counts are the wr_ids that the device sees.
  std::vector<Posted> sends_, recvs_;
  uint64_t sends_posted_ = 0, sends_ended_ = 0;
  uint64_t recvs_posted_ = 0, recvs_ended_ = 0;
  unsigned num_events_ = 0;        // of the completion channel, not acknowledged
  std::vector<uint32_t> regions_;  // lkeys
};

}  // namespace hccl
