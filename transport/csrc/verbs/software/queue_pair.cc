#include "verbs/software/queue_pair.h"

#include <atomic>

#include "verbs/checks.h"

namespace hccl {

namespace {

// Turns without a message after which an acknowledgement is sent by itself.
constexpr int turns_until_ack = 16;
constexpr int turns_per_check = 64;
// Time without a driving thread after which the progress thread drives a queue pair.
constexpr auto takeover_time = std::chrono::milliseconds(2);

std::atomic<uint32_t> next_number{1};  // relaxed: only unique

QueuePairAttributes checked(const QueuePairAttributes& attributes) {
  check_attributes(attributes);
  return attributes;
}

// The progress thread's part: drives a queue pair if no other thread has since its last turn.
class Card final : public Drivable {
 public:
  explicit Card(std::weak_ptr<QueuePair> pair) : pair_(std::move(pair)) {}

  Turn progress_turn() override {
    auto pair = pair_.lock();
    if (!pair || pair->state() < QueuePairState::rtr) return Turn::not_mine;
    if (pair->num_drives() != num_drives_) return Turn::quiet;
    return drive(*pair, [&] { return pair->drive(); }) ? Turn::moved : Turn::quiet;
  }

  bool prepare_sleep(Sleep& sleep) override {
    auto pair = pair_.lock();
    if (!pair) return true;
    if (pair->num_drives() != num_drives_ || pair->has_caller()) {
      // Another thread drives it: check again later.
      sleep.limit(VerbsClock::now() + takeover_time);
      num_drives_ = pair->num_drives();
      return true;
    }
    return !drive(*pair, [&] { return pair->announce_sleep(sleep); });
  }

 private:
  template <class Turn>
  bool drive(const QueuePair& pair, Turn turn) {
    bool moved = true;
    try {
      moved = turn();
    } catch (const LaneInterrupted&) {
      // The queue pair is now in ERROR, and signals are for other threads.
    }
    num_drives_ = pair.num_drives();
    return moved;
  }

  const std::weak_ptr<QueuePair> pair_;
  uint64_t num_drives_ = 0;  // as of the last turn
};

}  // namespace

QueuePair::QueuePair(std::shared_ptr<ProgressThread> progress,
                     std::shared_ptr<ProtectionDomain> domain,
                     std::shared_ptr<CompletionQueue> send_queue,
                     std::shared_ptr<CompletionQueue> recv_queue,
                     const QueuePairAttributes& attributes)
    : progress_(std::move(progress)),
      domain_(std::move(domain)),
      send_queue_(std::move(send_queue)),
      recv_queue_(std::move(recv_queue)),
      packets_{*domain_, checked(attributes), next_number.fetch_add(1, std::memory_order_relaxed)},
      requester_(std::in_place, packets_, *send_queue_),
      responder_(std::in_place, packets_, *recv_queue_) {
  domain_->attach(this);
  send_queue_->attach(this);
  recv_queue_->attach(this);
}

QueuePair::~QueuePair() {
  try {
    close();
  } catch (const LaneInterrupted&) {
    // A destructor cannot raise it.
  }
}

std::shared_ptr<QueuePair> QueuePair::connected(std::shared_ptr<ProgressThread> progress,
                                                std::shared_ptr<UnderlyingLane> lane,
                                                const QueuePairAttributes& attributes) {
  auto queue = std::make_shared<CompletionQueue>(attributes.max_send_wr + attributes.max_recv_wr);
  auto pair = std::make_shared<QueuePair>(std::move(progress), std::make_shared<ProtectionDomain>(),
                                          queue, queue, attributes);
  pair->modify(QueuePairState::init);
  pair->attach(std::move(lane));
  pair->modify(QueuePairState::rtr);
  pair->modify(QueuePairState::rts);
  return pair;
}

std::unique_lock<std::mutex> QueuePair::lock() {
  std::unique_lock held(mutex_, std::try_to_lock);
  if (held) return held;
  num_posters_.fetch_add(1, std::memory_order_relaxed);
  held.lock();
  num_posters_.fetch_sub(1, std::memory_order_relaxed);
  return held;
}

QueuePairAttributes QueuePair::attributes() {
  auto held = lock();
  return packets_.attributes;
}

std::string QueuePair::reason() {
  auto held = lock();
  return fault_.text;
}

void QueuePair::attach(std::shared_ptr<UnderlyingLane> lane) {
  auto held = lock();
  if (state() != QueuePairState::init) throw InvalidVerb("only a queue pair in INIT connects");
  underlying_ = std::move(lane);
  packets_.lane = &underlying_->lane();
}

void QueuePair::with_lane(const std::function<void(Lane&)>& use) {
  auto held = lock();
  if (underlying_) use(underlying_->lane());
}

void QueuePair::wake() {
  send_queue_->wake();
  recv_queue_->wake();
  progress_->wake();
}

void QueuePair::set_attributes(const QueuePairAttributes& attributes) {
  auto held = lock();
  if (state() == QueuePairState::rts) throw InvalidVerb("attributes are set before RTS");
  packets_.attributes = checked(attributes);
}

void QueuePair::modify(QueuePairState to) {
  {
    auto held = lock();
    step(state(), to);
  }
  if (to == QueuePairState::rtr) {
    progress_->start();
    progress_->kick(std::make_shared<Card>(weak_from_this()));
  }
  progress_->wake();
}

void QueuePair::step(QueuePairState from, QueuePairState to) {
  using enum QueuePairState;
  if (closed_) throw InvalidVerb("the queue pair is closed");
  if (to == reset) return forget();
  if (to == error) return fail(Fault{.text = "it was moved to ERROR"});
  check_step(from, to);
  if (to == rtr) {
    if (!underlying_) throw InvalidVerb("RTR needs a connection");
    size_t slot = underlying_->slot_bytes();
    size_t wanted = packets_.attributes.path_mtu;
    if (wanted > slot) {
      throw InvalidVerb("path_mtu is longer than this provider's " + std::to_string(slot));
    }
    packets_.mtu = wanted ? wanted : slot;
  }
  state_.store(to, std::memory_order_release);
}

void QueuePair::forget() {
  if (underlying_ && state() != QueuePairState::error) notify_peer(Status::success);
  drop_lane();
  requester_.emplace(packets_, *send_queue_);
  responder_.emplace(packets_, *recv_queue_);
  packets_.to_acknowledge = packets_.acknowledged = 0;
  packets_.posted = 0;
  fault_ = Fault{};
  ending_ = peer_left_ = false;
  state_.store(QueuePairState::reset, std::memory_order_release);
}

void QueuePair::post_send(const SendRequest& request) {
  bool stalled = false;
  {
    auto held = lock();
    QueuePairState now = state();
    if (now != QueuePairState::rts && now != QueuePairState::error) {
      throw InvalidVerb("a send needs a queue pair in RTS");
    }
    requester_->post(request);
    if (now == QueuePairState::error) {
      if (!ending_) requester_->flush(Status::flushed);
      return;
    }
    try {
      // Only the oldest is sent here: a thread that waits sends the rest.
      requester_->transmit();
    } catch (const LaneError&) {
      // The next turn has the same error, after it has received the peer's earlier messages.
    } catch (const LaneInterrupted&) {
      interrupted();
    }
    stalled = requester_->num_waiting() > 0 || !packets_.lane->flushed();
  }
  if (stalled) wake();
}

void QueuePair::post_recv(const RecvRequest& request) {
  auto held = lock();
  if (state() == QueuePairState::reset) throw InvalidVerb("a RECV needs a queue pair in INIT");
  responder_->post(request);
  if (state() == QueuePairState::error && !ending_) responder_->flush(Status::flushed);
}

bool QueuePair::drive() {
  num_drives_.store(num_drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (num_posters_.load(std::memory_order_relaxed) > 0 || !mutex_.try_lock()) return false;
  std::lock_guard lock(mutex_, std::adopt_lock);
  return turn();
}

// Called from a catch: the lane may have lost a message, or sent it without reporting that.
void QueuePair::interrupted() {
  std::exception_ptr interruption = std::current_exception();
  fail(Fault{.text = "a signal handler raised inside of its provider"});
  std::rethrow_exception(interruption);
}

// Called from a catch: moves to ERROR, for an exception of the protocol or the lane.
void QueuePair::fail_by_exception() {
  try {
    throw;
  } catch (const Fault& fault) {
    fail(fault);
  } catch (const LaneError& error) {
    peer_left_ = true;
    fail(Fault{.send = Status::retry_exceeded, .text = error.what()});
  } catch (const LaneInterrupted&) {
    interrupted();
  }
}

// One turn of the driver.
bool QueuePair::turn() {
  if (!underlying_ || state() < QueuePairState::rtr) return false;
  if (state() == QueuePairState::error) return drain();
  try {
    bool moved = receive();
    if (!packets_.lane->settled()) moved |= packets_.lane->flush();
    moved |= responder_->answer_reads();
    if (state() == QueuePairState::rts) moved |= requester_->transmit();
    requester_->complete();
    num_idle_turns_ = moved ? 0 : num_idle_turns_ + 1;
    moved |= responder_->acknowledge(num_idle_turns_ >= turns_until_ack);
    if (num_idle_turns_ % turns_per_check == turns_per_check - 1) {
      check_timers(VerbsClock::now());
    }
    return moved;
  } catch (...) {
    fail_by_exception();
  }
  return true;
}

void QueuePair::check_timers(VerbsClock::time_point now) {
  underlying_->tend();
  requester_->check_silence(now);
  // Messages that the peer sent before it ended are still received, then the queue pair fails.
  if (underlying_->peer_has_ended() && !receive()) {
    throw LaneError(0, "the peer's process has ended");
  }
}

bool QueuePair::receive() {
  bool moved = false;
  uint64_t num_received = responder_->num_received();
  // A further peek may be a system call, and a thread waits for the received message.
  for (int i = 0; i < packets_per_turn && responder_->num_received() == num_received; ++i) {
    const Header* header = packets_.lane->peek();
    if (header == nullptr) break;
    requester_->received();
    auto packet = std::bit_cast<Packet>(*header);
    if (!take(packet)) break;
    packets_.lane->release();
    moved = true;
    requester_->acknowledge(packet.acked);
  }
  return moved;
}

bool QueuePair::take(const Packet& packet) {
  switch (packet.kind) {
    case PacketKind::send:
    case PacketKind::send_with_imm:
    case PacketKind::write:
    case PacketKind::write_with_imm:
    case PacketKind::read:
    case PacketKind::more: return responder_->take(packet);
    case PacketKind::read_response: return requester_->take_response(packet);
    case PacketKind::receiver_not_ready:
      requester_->not_ready(packet.number, std::chrono::microseconds(packet.imm));
      return true;
    case PacketKind::acknowledge: return true;
    case PacketKind::goodbye:
      requester_->acknowledge(packet.acked);
      peer_left_ = true;
      if (packet.imm > static_cast<uint32_t>(Status::rnr_retry_exceeded)) break;
      if (packet.imm > 0) {
        throw Fault{.send = static_cast<Status>(packet.imm), .text = "the peer rejected a request"};
      }
      throw Fault{.send = Status::retry_exceeded, .text = "the peer closed its queue pair"};
  }
  throw Fault{.send = Status::remote_operation_error, .text = "a malformed packet"};
}

MemoryRegion QueuePair::register_memory(std::span<std::byte> memory, uint32_t access) {
  return domain_->register_memory(reinterpret_cast<uint64_t>(memory.data()), memory.size(), access);
}

size_t QueuePair::poll(std::span<Completion> out) {
  size_t count = send_queue_->poll(out);
  if (recv_queue_ != send_queue_) count += recv_queue_->poll(out.subspan(count));
  return count;
}

std::vector<int> QueuePair::descriptors() {
  auto held = lock();
  std::vector<int> descriptors;
  if (underlying_) descriptors = underlying_->descriptors();
  descriptors.push_back(send_queue_->descriptor());
  if (recv_queue_ != send_queue_) descriptors.push_back(recv_queue_->descriptor());
  return descriptors;
}

bool QueuePair::prepare_sleep(Sleep& sleep) {
  bool came = send_queue_->prepare_sleep(sleep);
  if (recv_queue_ != send_queue_) came |= recv_queue_->prepare_sleep(sleep);
  return came;
}

bool QueuePair::announce_sleep(Sleep& sleep) {
  num_drives_.store(num_drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  auto held = lock();
  if (!underlying_ || state() < QueuePairState::rtr) return false;
  auto until = VerbsClock::time_point::max();
  if (state() == QueuePairState::error) {
    if (ending_) until = ending_until_;
  } else {
    try {
      check_timers(VerbsClock::now());
      responder_->acknowledge(true);
    } catch (...) {
      fail_by_exception();
    }
    until = requester_->next_timer();
  }
  sleep.limit(until);
  if (underlying_) {
    sleep.announce(underlying_);
    underlying_->watch(sleep);
  }
  return turn();
}

}  // namespace hccl
