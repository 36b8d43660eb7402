#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

// Fragments one send may post in a turn, before others get theirs.
constexpr size_t fragments_per_turn = 4;
constexpr uint64_t rejected = 0;

bool is_one_sided(const Request& request) { return request.kind >= RequestKind::put; }

bool matches(const Request& receive, int peer, uint64_t tag) {
  return receive.tag == tag && (receive.peer == any_rank || receive.peer == peer);
}

}  // namespace

PointToPoint::PointToPoint(int rank, int world_size, size_t slot_bytes, Recorder& recorder,
                           Statistics& statistics)
    : rank_(rank),
      eager_bytes_(std::min(longest_eager_bytes, slot_bytes)),
      recorder_(recorder),
      statistics_(statistics) {
  lanes_.resize(static_cast<size_t>(world_size));
  closed_.resize(static_cast<size_t>(world_size));
}

void PointToPoint::post(const RequestPtr& request) {
  ++num_pending_;
  if (request->kind == RequestKind::send) return post_send(request);
  if (request->kind == RequestKind::wait_signal) return awaited_signals_.push_back(request);
  if (is_one_sided(*request)) {
    expect(*request);
    return sending_.push_back({request, 0, 0, 0});
  }
  for (auto it = unexpected_.begin(); it != unexpected_.end(); ++it) {
    if (!matches(*request, it->peer, it->header.fingerprint)) continue;
    Unexpected message = std::move(*it);
    unexpected_.erase(it);
    return accept(request, message);
  }
  posted_receives_.push_back(request);
}

// As Lane::post_send().
uint64_t PointToPoint::post(int peer, const Header& header, const std::byte* payload) {
  uint64_t number = lane(peer).post_send(header, payload);
  backlog_.note(lane(peer));
  return number;
}

void PointToPoint::post_send(const RequestPtr& request) {
  int peer = request->peer;
  if (peer == rank_) {
    return arrive({rank_, {.fingerprint = request->tag, .size = request->num_bytes}, {}, request});
  }
  if (request->num_bytes > eager_bytes_) {
    uint64_t id = next_id_++;
    expect(*request);
    announced_[id] = {request, 0, 0, 0};
    post(peer, {.fingerprint = request->tag,
                .id = id,
                .size = request->num_bytes,
                .kind = request_to_send});
    return;
  }
  Header header{.fingerprint = request->tag,
                .size = request->num_bytes,
                .length = static_cast<uint32_t>(request->num_bytes),
                .kind = eager};
  uint64_t number = post(peer, header, request->address);
  if (lane(peer).completed() >= number) {
    finish(request);
  } else {
    sending_.push_back({request, 0, request->num_bytes, number});
  }
}

void PointToPoint::expect(const Request& request) {
  for (const auto& memory : memories_) memory->expect(request.address, request.num_bytes);
}

void PointToPoint::arrive(Unexpected message) {
  for (auto it = posted_receives_.begin(); it != posted_receives_.end(); ++it) {
    if (!matches(**it, message.peer, message.header.fingerprint)) continue;
    RequestPtr receive = *it;
    posted_receives_.erase(it);
    return accept(receive, message);
  }
  unexpected_.push_back(std::move(message));
}

void PointToPoint::finish(const RequestPtr& request) {
  --num_pending_;
  ++num_finished_;
  uint64_t now_ns = steady_ns(Clock::now());
  // An eager payload moves at once: a send at its start, a recv at its end.
  bool failed = request->failure != nullptr;
  bool is_received =
      request->kind == RequestKind::recv || request->kind == RequestKind::wait_signal;
  if (request->started_ns == 0 && !failed) {
    recorder_.start(*request, is_received ? now_ns : 0);
  }
  recorder_.end(*request, failed ? CallState::failed : CallState::completed, now_ns);
  if (!failed && !is_one_sided(*request)) {
    int kind = is_received ? kind_of_recv : kind_of_send;
    statistics_.calls[kind].add(request->started_ns - steady_ns(request->submitted),
                                now_ns - request->started_ns);
  }
  request->finish();
}

void PointToPoint::reject(const RequestPtr& request, size_t theirs) {
  Failure failure = observed(Cause::mismatch, request->peer);
  failure.sends = request->kind == RequestKind::send;
  failure.sent_bytes = failure.sends ? request->num_bytes : theirs;
  failure.expected_bytes = failure.sends ? theirs : request->num_bytes;
  request->failure = std::make_shared<Failure>(std::move(failure));
  finish(request);
}

// `receive` and `message` belong together: move the payload, or ask for it.
void PointToPoint::accept(const RequestPtr& receive, Unexpected& message) {
  receive->peer = message.peer;
  size_t size = message.header.size;
  bool fits = size == receive->num_bytes;
  if (message.self) {
    if (fits && size) std::memcpy(receive->address, message.self->address, size);
    fits ? finish(message.self) : reject(message.self, receive->num_bytes);
  } else if (message.header.kind == request_to_send) {
    uint64_t id = fits ? next_id_++ : rejected;
    if (fits) {
      recorder_.start(*receive, steady_ns(Clock::now()));
      expect(*receive);
      receiving_[id] = {receive, 0};
    }
    post(message.peer, {.fingerprint = message.header.id,
                        .id = id,
                        .size = receive->num_bytes,
                        .kind = clear_to_send});
    if (fits) return;
  } else if (fits && size) {
    std::memcpy(receive->address, message.payload.data(), size);
  }
  fits ? finish(receive) : reject(receive, size);
}

// True if a message was taken from the lane. Throws LaneError for an invalid message.
bool PointToPoint::drain(int peer) {
  Lane& from = lane(peer);
  const Header* header = from.peek();
  if (header == nullptr) return false;
  if (header->kind == fragment) return drain_fragment(peer, *header);
  if (header->kind == put) return drain_put(peer, *header);
  bool is_control =
      header->kind == request_to_send || header->kind == clear_to_send || header->kind == signal;
  bool is_whole = header->kind == eager && header->length == header->size;
  if (is_control ? header->length > 0 : !is_whole || header->length > eager_bytes_) {
    throw LaneError(peer, "a malformed message");
  }
  if (header->length && from.lend() == nullptr) return false;
  handle(peer, *header);
  return true;
}

bool PointToPoint::drain_fragment(int peer, const Header& header) {
  auto it = receiving_.find(header.id);
  if (it == receiving_.end()) throw LaneError(peer, "a malformed message");
  auto& [request, received] = it->second;
  // In order and without a gap: otherwise missing data could count as received.
  bool is_next = request->peer == peer && header.size == received && header.length > 0;
  if (!is_next || header.length > request->num_bytes - received) {
    throw LaneError(peer, "a malformed message");
  }
  Lane& from = lane(peer);
  if (!from.receive(request->address + received)) return false;
  received += header.length;
  from.release();
  if (received == request->num_bytes) {
    finish(request);
    receiving_.erase(it);
  }
  return true;
}

// A window that this rank has closed alone drops what still arrives for it.
bool PointToPoint::drain_put(int peer, const Header& header) {
  Lane& from = lane(peer);
  if (header.length == 0 || header.length > from.max_message_bytes()) {
    throw LaneError(peer, "a malformed message");
  }
  bool is_here = windows_->find(header.fingerprint, [&](const Window* window) {
    if (window == nullptr) dropped_.resize(header.length);
    std::byte* to = window ? window->place(header.size, header.length) : dropped_.data();
    if (to == nullptr) throw LaneError(peer, "a malformed message");
    return from.receive(to);
  });
  if (is_here) from.release();
  return is_here;
}

// Consumes a complete message: eager, request_to_send, clear_to_send or signal.
void PointToPoint::handle(int peer, const Header& header) {
  Lane& from = lane(peer);
  if (header.kind == signal) {
    if (header.id > static_cast<uint64_t>(Signal::closing)) {
      throw LaneError(peer, "a malformed message");
    }
    windows_->find(header.fingerprint, [&](Window* window) {
      if (window) window->count_signal(peer, static_cast<Signal>(header.id));
    });
    return from.release();
  }
  if (header.kind == clear_to_send) {
    auto it = announced_.find(header.fingerprint);
    uint64_t receiver_id = header.id;
    size_t wanted = header.size;
    from.release();
    // The send may have expired.
    if (it == announced_.end() || it->second.request->peer != peer) return;
    Sending sending = it->second;
    announced_.erase(it);
    if (receiver_id == rejected) return reject(sending.request, wanted);
    sending.receiver_id = receiver_id;
    recorder_.start(*sending.request, steady_ns(Clock::now()));
    sending_.push_back(std::move(sending));
    return;
  }
  Unexpected message{peer, header, {}, nullptr};
  if (header.length) {
    const std::byte* payload = from.lend();
    message.payload.assign(payload, payload + header.length);
  }
  from.release();
  arrive(std::move(message));
}

Header PointToPoint::part_of(const Sending& sending, size_t num_bytes) const {
  const Request& request = *sending.request;
  Header header{
      .id = sending.receiver_id,
      .size = sending.posted,
      .length = static_cast<uint32_t>(num_bytes),
      .kind = fragment,
      .sender_waits = receiving_.empty() && posted_receives_.empty(),
      .copy_mode = request.num_bytes >= least_single_bytes ? CopyMode::single : CopyMode::cached};
  if (is_one_sided(request)) {
    header.fingerprint = request.tag;
    header.size = request.offset + sending.posted;
    header.kind = put;
    header.sender_waits = 0;
  }
  return header;
}

// Whether an earlier put or signal to the same peer has not left: they arrive in order.
bool PointToPoint::follows(const Sending& sending) const {
  const Request& request = *sending.request;
  for (const Sending& other : sending_) {
    if (&other == &sending) return false;
    if (is_one_sided(*other.request) && other.request->peer == request.peer && !other.is_posted()) {
      return true;
    }
  }
  return false;
}

// Queues the next fragments. True if any was queued.
bool PointToPoint::stream(Sending& sending) {
  const Request& request = *sending.request;
  if (is_one_sided(request) && !sending.is_posted() && follows(sending)) return false;
  Lane& to = lane(request.peer);
  bool moved = false;
  if (request.kind == RequestKind::signal && !sending.is_posted()) {
    Header header{.fingerprint = request.tag, .id = request.offset, .kind = signal};
    sending.last_number = post(request.peer, header);
    moved = true;
  }
  for (size_t i = 0; i < fragments_per_turn && sending.posted < request.num_bytes; ++i) {
    if (!to.flushed()) break;
    size_t num_bytes = std::min(to.max_message_bytes(), request.num_bytes - sending.posted);
    Header header = part_of(sending, num_bytes);
    sending.last_number = post(request.peer, header, request.address + sending.posted);
    sending.posted += num_bytes;
    moved = true;
  }
  return moved;
}

// Ends the waits whose signals are there, in the order of the calls.
bool PointToPoint::take_signals() {
  return std::erase_if(awaited_signals_, [&](const RequestPtr& request) {
           if (!request->window->take_signal(request->peer, static_cast<Signal>(request->offset))) {
             return false;
           }
           finish(request);
           return true;
         }) > 0;
}

bool PointToPoint::drain_all() {
  bool moved = false;
  for (size_t peer = 0; peer < lanes_.size(); ++peer) {
    if (!lanes_[peer] || (closed_[peer] && !waits_for(static_cast<int>(peer)))) continue;
    try {
      while (drain(static_cast<int>(peer))) moved = true;
    } catch (const LaneError&) {
      if (waits_for(static_cast<int>(peer))) throw;
      closed_[peer] = true;  // its control link reports whether it left or died
    }
  }
  return moved;
}

bool PointToPoint::progress() {
  bool moved = backlog_.flush();
  if (num_pending_ == 0 && !serves()) return moved || backlog_.settle();
  moved |= drain_all();
  if (!awaited_signals_.empty()) moved |= take_signals();
  std::erase_if(sending_, [&](Sending& sending) {
    moved |= stream(sending);
    const Request& request = *sending.request;
    if (!sending.is_posted()) return false;
    if (lane(request.peer).completed() < sending.last_number) return false;
    finish(sending.request);
    return moved = true;
  });
  return moved || backlog_.settle();
}

RequestPtr PointToPoint::expire(Deadline now) {
  auto times_out = [&](const RequestPtr& request) {
    if (!request || now < request->deadline) return false;
    Failure failure = observed(Cause::timed_out, request->peer);
    if (request->peer != any_rank && request->peer != rank_) {
      failure.paths = lane(request->peer).troubles();
    }
    request->failure = std::make_shared<Failure>(std::move(failure));
    finish(request);
    return true;
  };
  std::erase_if(posted_receives_, times_out);
  std::erase_if(awaited_signals_, times_out);
  std::erase_if(announced_, [&](const auto& item) { return times_out(item.second.request); });
  std::erase_if(unexpected_, [&](const auto& message) { return times_out(message.self); });
  RequestPtr late;
  for_each_request([&](const RequestPtr& request) {
    if (now >= request->deadline) late = request;
  });
  return late;
}

void PointToPoint::abandon(std::vector<RequestPtr>& unfinished) {
  for_each_request([&](const RequestPtr& request) {
    if (!request->is_done()) unfinished.push_back(request);
  });
  posted_receives_.clear();
  unexpected_.clear();
  announced_.clear();
  receiving_.clear();
  sending_.clear();
  awaited_signals_.clear();
  windows_->end();
  backlog_.clear();
  num_pending_ = 0;
}

void PointToPoint::close() {
  windows_->end();
  unexpected_.clear();
  lanes_.clear();
}

bool PointToPoint::waits_for(int peer) const {
  bool waits = std::any_of(backlog_.lanes().begin(), backlog_.lanes().end(),
                           [peer](const Lane* lane) { return lane->peer() == peer; });
  for_each_request([&](const RequestPtr& request) { waits |= request->peer == peer; });
  return waits;
}

bool PointToPoint::has_unawaited() const {
  bool found = false;
  for_each_request([&](const RequestPtr& request) { found |= request->is_unawaited(); });
  return found;
}

template <typename Visit>
void PointToPoint::for_each_request(Visit visit) const {
  for (const RequestPtr& request : posted_receives_) visit(request);
  for (const Unexpected& message : unexpected_) {
    if (message.self) visit(message.self);
  }
  for (const auto& [id, sending] : announced_) visit(sending.request);
  for (const auto& [id, receiving] : receiving_) visit(receiving.request);
  for (const Sending& sending : sending_) visit(sending.request);
  for (const RequestPtr& request : awaited_signals_) visit(request);
}

}  // namespace hccl
