// A queue pair: a reliable connection with verbs' semantics, in software over any lane.
//
// requester.h is its sending half, responder.h its receiving half, packet_lane.h its packets;
// queue_pair_end.cc has its end. A thread that polls a completion queue drives its queue pairs. The
// progress thread acts as the network card for queue pairs that no thread polls: a peer can access
// this process's memory, and gets answers, while this process computes.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "progress/progress_thread.h"
#include "verbs/protocol/requester.h"
#include "verbs/protocol/responder.h"
#include "verbs/software/underlying_lane.h"

namespace hccl {

// Thread-safe; owned by a shared_ptr.
class QueuePair final : public QueuePairInterface,
                        public DrivenPair,
                        public UsesRegions,
                        public std::enable_shared_from_this<QueuePair> {
 public:
  QueuePair(std::shared_ptr<ProgressThread> progress, std::shared_ptr<ProtectionDomain> domain,
            std::shared_ptr<CompletionQueue> send_queue,
            std::shared_ptr<CompletionQueue> recv_queue, const QueuePairAttributes& attributes);
  ~QueuePair() override;  // closes it
  // Makes one in RTS over `lane`, with its own protection domain and completion queue.
  static std::shared_ptr<QueuePair> connected(std::shared_ptr<ProgressThread> progress,
                                              std::shared_ptr<UnderlyingLane> lane,
                                              const QueuePairAttributes& attributes);
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t number() const { return packets_.qp_num; }
  QueuePairState state() const { return state_.load(std::memory_order_acquire); }
  QueuePairAttributes attributes();
  // Why it is in ERROR; empty otherwise.
  std::string reason() override;

  // Sets its connection; in INIT only.
  void attach(std::shared_ptr<UnderlyingLane> lane);
  // RESET -> INIT -> RTR -> RTS, and from anywhere to RESET and ERROR. Throws InvalidVerb for other
  // steps, and for RTR without a connection.
  void modify(QueuePairState state);
  // Changes retries, timers and path_mtu, not the sizes; before RTS.
  void set_attributes(const QueuePairAttributes& attributes);

  // Throws InvalidVerb in the wrong state, QueueFull.
  void post_send(const SendRequest& request) override;
  void post_recv(const RecvRequest& request) override;

  // Of the queues and the protection domain that it was made with.
  MemoryRegion register_memory(std::span<std::byte> memory, uint32_t access) override;
  const void* domain() const override { return domain_.get(); }
  size_t poll(std::span<Completion> out) override;
  std::vector<int> descriptors() override;
  bool prepare_sleep(Sleep& sleep) override;

  void stop() override { modify(QueuePairState::error); }
  size_t max_inline() const override { return packets_.attributes.max_inline; }

  bool drive() override;
  bool announce_sleep(Sleep& sleep) override;
  // Sends a goodbye, waits a moment for the peer's, and releases the lane. No completions.
  void close() override;

  const QueuePairStatistics& statistics() const { return packets_.statistics; }

  // For the replacement of its lane's connections: calls `use` under the lock, unless the lane is
  // gone.
  void with_lane(const std::function<void(Lane&)>& use);
  // Makes its drivers check the lane again.
  void wake();

  // For the progress thread.
  uint64_t num_drives() const { return num_drives_.load(std::memory_order_relaxed); }
  // Whether a thread that waits for completions sleeps on it: the progress thread leaves it alone.
  bool has_caller() const { return send_queue_->has_caller() || recv_queue_->has_caller(); }
  // For the protection domain: returns when no answer on the lane lies in a revoked region.
  void release_region() override;

 private:
  static constexpr int packets_per_turn = 64;

  // Takes the lock for a caller, before which a spinning driver must give way.
  std::unique_lock<std::mutex> lock();
  bool receive();
  bool take(const Packet& packet);
  bool drain();
  bool turn();
  [[noreturn]] void interrupted();
  void fail_by_exception();
  template <class Done>
  bool wait_until(Done done);
  void check_timers(VerbsClock::time_point now);
  void fail(const Fault& fault);
  void notify_peer(Status rejection);
  void drop_lane();
  void forget();
  void step(QueuePairState from, QueuePairState to);

  const std::shared_ptr<ProgressThread> progress_;
  const std::shared_ptr<ProtectionDomain> domain_;
  const std::shared_ptr<CompletionQueue> send_queue_;
  const std::shared_ptr<CompletionQueue> recv_queue_;

  std::mutex mutex_;
  // Posters that wait for the lock: a spinning driver must let them in. Pairs with drive().
  std::atomic<int> num_posters_{0};
  // Written under the lock.
  std::atomic<QueuePairState> state_{QueuePairState::reset};
  std::atomic<uint64_t> num_drives_{0};  // a hint for the progress thread

  // Guarded by mutex_, all below.
  std::shared_ptr<UnderlyingLane> underlying_;
  PacketLane packets_;
  std::optional<Requester> requester_;  // never empty; made anew in RESET
  std::optional<Responder> responder_;
  int num_idle_turns_ = 0;
  bool peer_left_ = false;  // it sent a goodbye, or its connection broke
  bool closed_ = false;
  bool ending_ = false;  // in ERROR, but the lane may still borrow what was posted
  Fault fault_;
  VerbsClock::time_point ending_until_{};
};

}  // namespace hccl
