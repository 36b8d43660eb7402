#include "verbs/rdma/queue_pair.h"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "verbs/checks.h"
#include "verbs/rdma/codes.h"

namespace hccl {

namespace {

constexpr uint32_t psn_mask = 0xffffff;
constexpr uint64_t recv_bit = uint64_t{1} << 63;  // in the wr_ids that the device sees
constexpr uint32_t all_access = access_local_write | access_remote_write | access_remote_read;
constexpr uint8_t hop_limit = 64;
constexpr int most_retries = 7;
constexpr int completions_per_drive = 16;

}  // namespace

RdmaQueuePair::RdmaQueuePair(std::shared_ptr<RdmaDomain> domain,
                             std::shared_ptr<CompletionQueue> send_queue,
                             std::shared_ptr<CompletionQueue> recv_queue,
                             const QueuePairAttributes& attributes)
    : domain_(std::move(domain)),
      device_(domain_->device()),
      verbs_(device_.verbs()),
      send_queue_(std::move(send_queue)),
      recv_queue_(std::move(recv_queue)),
      attributes_(attributes),
      psn_(std::random_device()() & psn_mask),
      event_fd_(duplicate(device_.event_fd())),
      sends_(attributes.max_send_wr),
      recvs_(attributes.max_recv_wr) {
  check_attributes(attributes_);
  check_limits();
  try {
    create();
  } catch (const RdmaError&) {
    destroy();
    throw;
  }
  number_ = pair_->qp_num;
  for (const auto& queue : {send_queue_, recv_queue_}) {
    if (queue) queue->attach(this);
  }
}

RdmaQueuePair::~RdmaQueuePair() { close(); }

void RdmaQueuePair::check_limits() const {
  auto check = [this](const char* what, size_t wanted, int limit) {
    if (wanted <= static_cast<size_t>(limit)) return;
    throw InvalidVerb(std::string(what) + " is " + std::to_string(wanted) + ", device " +
                      device_.name() + " has " + std::to_string(limit) + " at most");
  };
  const ibv::DeviceAttr& limits = device_.limits();
  check("max_send_wr", attributes_.max_send_wr, limits.max_qp_wr);
  check("max_recv_wr", attributes_.max_recv_wr, limits.max_qp_wr);
  check("max_sge", attributes_.max_sge, limits.max_sge);
  check("max_send_wr + max_recv_wr", attributes_.max_send_wr + attributes_.max_recv_wr,
        limits.max_cqe);
}

void RdmaQueuePair::create() {
  channel_ = verbs_.create_comp_channel(device_.context());
  if (channel_ == nullptr) throw_rdma_error("ibv_create_comp_channel on " + device_.name(), errno);
  fcntl(channel_->fd, F_SETFL, O_NONBLOCK);
  auto capacity = static_cast<int>(attributes_.max_send_wr + attributes_.max_recv_wr);
  queue_ = verbs_.create_cq(device_.context(), capacity, nullptr, channel_, 0);
  if (queue_ == nullptr) throw_rdma_error("ibv_create_cq on " + device_.name(), errno);
  ibv::QpInitAttr wanted{};
  wanted.send_cq = wanted.recv_cq = queue_;
  wanted.qp_type = ibv::qpt_rc;
  auto max_sge = static_cast<uint32_t>(attributes_.max_sge);
  wanted.cap = {static_cast<uint32_t>(attributes_.max_send_wr),
                static_cast<uint32_t>(attributes_.max_recv_wr), max_sge, max_sge,
                static_cast<uint32_t>(attributes_.max_inline)};
  pair_ = verbs_.create_qp(domain_->pd(), &wanted);
  if (pair_ == nullptr) throw_rdma_error("ibv_create_qp on " + device_.name(), errno);
}

void RdmaQueuePair::destroy() {
  if (pair_ != nullptr) verbs_.destroy_qp(pair_);
  pair_ = nullptr;
  // The queue's destruction waits for its events to be acknowledged.
  if (num_events_ > 0) verbs_.ack_cq_events(queue_, std::exchange(num_events_, 0));
  if (queue_ != nullptr) verbs_.destroy_cq(queue_);
  queue_ = nullptr;
  if (channel_ != nullptr) verbs_.destroy_comp_channel(channel_);
  channel_ = nullptr;
}

void RdmaQueuePair::close() {
  for (const auto& queue : {recv_queue_, send_queue_}) {
    if (queue) queue->detach(this);
  }
  std::lock_guard lock(mutex_);
  destroy();
  state_ = QueuePairState::reset;
  for (uint32_t lkey : regions_) domain_->deregister_memory(lkey);
  regions_.clear();
}

QueuePairState RdmaQueuePair::state() {
  std::lock_guard lock(mutex_);
  if (pair_ == nullptr || state_ < QueuePairState::rtr || state_ == QueuePairState::error) {
    return state_;
  }
  ibv::QpAttr now{};
  ibv::QpInitAttr made{};
  bool asked = verbs_.query_qp(pair_, &now, ibv::qp_state, &made) == 0;
  if (asked && now.qp_state == ibv::qps_err) enter_error();
  return state_;
}

std::string RdmaQueuePair::reason() {
  std::lock_guard lock(mutex_);
  return reason_;
}

std::string RdmaQueuePair::trouble() {
  if (!device_.port_down()) return {};
  return "IBV_EVENT_PORT_ERR on " + device_.name() + ": its port " +
         std::to_string(device_.route().port) + " is down";
}

void RdmaQueuePair::attach(const RdmaPeer& peer) {
  std::lock_guard lock(mutex_);
  if (state_ != QueuePairState::init) throw InvalidVerb("only a queue pair in INIT connects");
  peer_ = peer;
}

void RdmaQueuePair::set_attributes(const QueuePairAttributes& attributes) {
  check_attributes(attributes);
  std::lock_guard lock(mutex_);
  if (state_ == QueuePairState::rts) throw InvalidVerb("attributes are set before RTS");
  attributes_ = attributes;
}

void RdmaQueuePair::modify(QueuePairState to) {
  std::lock_guard lock(mutex_);
  if (pair_ == nullptr) throw InvalidVerb("the queue pair is closed");
  if (to != QueuePairState::reset && to != QueuePairState::error) {
    check_step(state_, to);
    if (to == state_) return;
  }
  if (to == QueuePairState::rtr && peer_.mtu == 0) throw InvalidVerb("RTR needs a connection");
  // The kernel has no step from RESET to ERROR.
  if (to == QueuePairState::error && state_ == QueuePairState::reset) step(QueuePairState::init);
  step(to);
  state_ = to;
  if (to == QueuePairState::reset) forget();
  if (to == QueuePairState::error && reason_.empty()) reason_ = "it was moved to ERROR";
}

void RdmaQueuePair::step(QueuePairState to) {
  const RdmaRoute& route = device_.route();
  const ibv::DeviceAttr& limits = device_.limits();
  auto reads = [this](int limit) {
    return static_cast<uint8_t>(std::clamp<size_t>(attributes_.max_rd_atomic, 1,
                                                   static_cast<size_t>(std::clamp(limit, 1, 255))));
  };
  ibv::QpAttr to_set{};
  int mask = ibv::qp_state;
  switch (to) {
    case QueuePairState::reset: to_set.qp_state = ibv::qps_reset; break;
    case QueuePairState::error: to_set.qp_state = ibv::qps_err; break;
    case QueuePairState::init:
      to_set.qp_state = ibv::qps_init;
      to_set.port_num = route.port;
      to_set.qp_access_flags = all_access;  // each region limits its access
      mask |= ibv::qp_pkey_index | ibv::qp_port | ibv::qp_access_flags;
      break;
    case QueuePairState::rtr: {
      to_set.qp_state = ibv::qps_rtr;
      size_t mtu = std::min(peer_.mtu, device_.mtu());
      if (attributes_.path_mtu > mtu) {
        throw InvalidVerb("path_mtu is longer than this path's " + std::to_string(mtu));
      }
      to_set.path_mtu = mtu_code(attributes_.path_mtu ? attributes_.path_mtu : mtu);
      to_set.dest_qp_num = peer_.qp_num;
      to_set.rq_psn = peer_.psn;
      to_set.max_dest_rd_atomic = reads(limits.max_qp_rd_atom);
      to_set.min_rnr_timer = static_cast<uint8_t>(rnr_timer_code(attributes_.min_rnr_timer));
      ibv::AhAttr& path = to_set.ah_attr;
      std::copy(peer_.gid.begin(), peer_.gid.end(), path.grh.dgid);
      path.grh.sgid_index = route.gid_index;
      path.grh.hop_limit = hop_limit;
      path.grh.traffic_class = route.traffic_class;
      path.sl = route.service_level;
      path.is_global = 1;  // InfiniBand routes by the LID, and carries the GIDs along
      path.dlid = peer_.lid;
      path.port_num = route.port;
      mask |= ibv::qp_av | ibv::qp_path_mtu | ibv::qp_dest_qpn | ibv::qp_rq_psn |
              ibv::qp_max_dest_rd_atomic | ibv::qp_min_rnr_timer;
      break;
    }
    case QueuePairState::rts:
      to_set.qp_state = ibv::qps_rts;
      to_set.timeout = static_cast<uint8_t>(timeout_code(attributes_.timeout));
      to_set.retry_cnt = static_cast<uint8_t>(std::min(attributes_.retry_count, most_retries));
      to_set.rnr_retry = static_cast<uint8_t>(attributes_.rnr_retry);
      to_set.sq_psn = psn_;
      to_set.max_rd_atomic = reads(limits.max_qp_init_rd_atom);
      mask |= ibv::qp_timeout | ibv::qp_retry_cnt | ibv::qp_rnr_retry | ibv::qp_sq_psn |
              ibv::qp_max_qp_rd_atomic;
      break;
  }
  int error = verbs_.modify_qp(pair_, &to_set, mask);
  if (error != 0) {
    throw_rdma_error(
        "ibv_modify_qp of " + device_.name() + " to state " + std::to_string(to_set.qp_state),
        error);
  }
}

void RdmaQueuePair::forget() {
  // Completions of earlier requests must not be mistaken for later ones'.
  ibv::Wc dropped[completions_per_drive];
  while (queue_->context->ops.poll_cq(queue_, completions_per_drive, dropped) > 0) {
  }
  sends_ended_ = sends_posted_;
  recvs_ended_ = recvs_posted_;
  peer_ = RdmaPeer{};
  reason_.clear();
}

// The device has moved it to ERROR.
void RdmaQueuePair::enter_error() {
  if (std::exchange(state_, QueuePairState::error) != QueuePairState::error) flush();
}

// Soft-RoCE has no doorbell for RECVs: RECVs posted in ERROR end only when ERROR is set again. For
// other devices the step has no effect.
void RdmaQueuePair::flush() {
  ibv::QpAttr to_set{};
  to_set.qp_state = ibv::qps_err;
  // An error here means that the device is lost, which the next poll reports.
  verbs_.modify_qp(pair_, &to_set, ibv::qp_state);
}

MemoryRegion RdmaQueuePair::register_memory(std::span<std::byte> memory, uint32_t access) {
  MemoryRegion region =
      domain_->register_memory(reinterpret_cast<uint64_t>(memory.data()), memory.size(), access);
  std::lock_guard lock(mutex_);
  regions_.push_back(region.lkey);
  return region;
}

void RdmaQueuePair::post_send(const SendRequest& request) {
  ibv::Sge pieces[max_scatter_gather];
  std::lock_guard lock(mutex_);
  if (state_ != QueuePairState::rts && state_ != QueuePairState::error) {
    throw InvalidVerb("a send needs a queue pair in RTS");
  }
  size_t length = checked_length(request, attributes_);
  if (sends_posted_ - sends_ended_ == sends_.size()) {
    throw QueueFull("max_send_wr requests are under way");
  }
  for (size_t i = 0; i < request.pieces.size(); ++i) {
    pieces[i] = {request.pieces[i].address, request.pieces[i].length, request.pieces[i].lkey};
  }
  ibv::SendWr wr{};
  wr.wr_id = sends_posted_;
  wr.sg_list = pieces;
  wr.num_sge = static_cast<int>(request.pieces.size());
  wr.opcode = wr_opcode(request.opcode);
  wr.send_flags = request.flags;  // their numbers are those of libibverbs
  wr.imm_data = htonl(request.imm);
  wr.rdma = {request.remote_address, request.rkey};
  ibv::SendWr* bad = nullptr;
  int error = pair_->context->ops.post_send(pair_, &wr, &bad);
  // Its ring is full, because its completions were not taken for lack of room elsewhere.
  if (error == ENOMEM) throw QueueFull("the device has no room for another request");
  if (error != 0) throw InvalidVerb("the device refused a send: " + std::string(strerror(error)));
  sends_[sends_posted_++ % sends_.size()] = {request.wr_id, request.opcode,
                                             static_cast<uint32_t>(length)};
  statistics_.messages.add(1);
  statistics_.bytes.add(length);
  if (state_ == QueuePairState::error) flush();
}

void RdmaQueuePair::post_recv(const RecvRequest& request) {
  ibv::Sge pieces[max_scatter_gather];
  std::lock_guard lock(mutex_);
  if (state_ == QueuePairState::reset) throw InvalidVerb("a RECV needs a queue pair in INIT");
  checked_length(request.pieces, attributes_.max_sge);
  if (recvs_posted_ - recvs_ended_ == recvs_.size()) {
    throw QueueFull("max_recv_wr RECVs are posted");
  }
  for (size_t i = 0; i < request.pieces.size(); ++i) {
    pieces[i] = {request.pieces[i].address, request.pieces[i].length, request.pieces[i].lkey};
  }
  ibv::RecvWr wr{recvs_posted_ | recv_bit, nullptr, pieces,
                 static_cast<int>(request.pieces.size())};
  ibv::RecvWr* bad = nullptr;
  int error = pair_->context->ops.post_recv(pair_, &wr, &bad);
  if (error == ENOMEM) throw QueueFull("the device has no room for another RECV");
  if (error != 0) throw InvalidVerb("the device refused a RECV: " + std::string(strerror(error)));
  recvs_[recvs_posted_++ % recvs_.size()] = {request.wr_id, Opcode::recv, 0};
  if (state_ == QueuePairState::error) flush();
}

size_t RdmaQueuePair::poll(std::span<Completion> out) {
  std::lock_guard lock(mutex_);
  return take(out);
}

size_t RdmaQueuePair::take(std::span<Completion> out) {
  ibv::Wc taken[completions_per_drive];
  if (queue_ == nullptr || out.empty()) return 0;
  auto wanted = static_cast<int>(std::min<size_t>(out.size(), completions_per_drive));
  int count = queue_->context->ops.poll_cq(queue_, wanted, taken);
  if (count < 0 || (count == 0 && device_.lost())) {
    if (reason_.empty()) reason_ = "RDMA device " + device_.name() + " is gone or failed";
    if (std::exchange(state_, QueuePairState::error) == QueuePairState::error) return 0;
    out[0] = {.status = Status::device_error, .qp_num = number_};
    return 1;
  }
  std::transform(taken, taken + count, out.begin(),
                 [this](const ibv::Wc& wc) { return translate(wc); });
  return static_cast<size_t>(count);
}

Completion RdmaQueuePair::translate(const ibv::Wc& wc) {
  bool is_recv = wc.wr_id & recv_bit;
  uint64_t number = wc.wr_id & ~recv_bit;
  const Posted& posted = is_recv ? recvs_[number % recvs_.size()] : sends_[number % sends_.size()];
  // All before it have ended too, signaled or not.
  (is_recv ? recvs_ended_ : sends_ended_) = number + 1;
  Completion completion{.wr_id = posted.wr_id,
                        .status = status_of(wc.status),
                        .opcode = posted.opcode,
                        .byte_len = posted.length,
                        .qp_num = number_};
  if (completion.status != Status::success) {
    if (reason_.empty()) {
      reason_ = std::string(verbs_.wc_status_str(wc.status)) + " (ibv_wc_status " +
                std::to_string(wc.status) + ", vendor_err " + std::to_string(wc.vendor_err) +
                ") on " + device_.name() + device_.port_trouble();
    }
    enter_error();
    return completion;
  }
  if (!is_recv) return completion;
  if (wc.opcode == ibv::wc_recv_rdma_with_imm) completion.opcode = Opcode::recv_rdma_with_imm;
  completion.byte_len = wc.byte_len;
  completion.has_imm = wc.wc_flags & ibv::wc_with_imm;
  completion.imm = completion.has_imm ? ntohl(wc.imm_data) : 0;
  statistics_.received_messages.add(1);
  statistics_.received_bytes.add(wc.byte_len);
  return completion;
}

bool RdmaQueuePair::drive() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && deliver();
}

bool RdmaQueuePair::deliver() {
  Completion taken[completions_per_drive];
  // Completions that find no room in the caller's queues wait in the device's.
  size_t room = std::min({send_queue_->room(), recv_queue_->room(), std::size(taken)});
  size_t count = take(std::span(taken).first(room));
  for (const Completion& completion : std::span(taken).first(count)) {
    bool is_recv = completion.opcode >= Opcode::recv;
    (is_recv ? recv_queue_ : send_queue_)->push(completion);
  }
  return count > 0;
}

// Its next completion makes the channel readable.
void RdmaQueuePair::arm() {
  ibv::Cq* queue;
  void* context;
  while (verbs_.get_cq_event(channel_, &queue, &context) == 0) ++num_events_;
  queue_->context->ops.req_notify_cq(queue_, 0);
}

std::vector<int> RdmaQueuePair::descriptors() {
  std::lock_guard lock(mutex_);
  if (channel_ == nullptr) return {};
  return {channel_->fd, event_fd_.get()};
}

bool RdmaQueuePair::prepare_sleep(Sleep&) {
  device_.take_events();
  std::lock_guard lock(mutex_);
  if (queue_ != nullptr) arm();
  return false;
}

bool RdmaQueuePair::announce_sleep(Sleep& sleep) {
  for (int fd : descriptors()) sleep.watch(fd);
  prepare_sleep(sleep);
  std::lock_guard lock(mutex_);
  return deliver();
}

}  // namespace hccl
