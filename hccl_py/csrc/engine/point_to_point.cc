#include "engine/point_to_point.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

// Fragments one send may post in a turn, before others get theirs.
constexpr size_t fragments_per_turn = 4;
constexpr uint64_t rejected = 0;

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
  if (request->started_ns == 0 && !failed) {
    recorder_.start(*request, request->kind == RequestKind::send ? 0 : now_ns);
  }
  recorder_.end(*request, failed ? CallState::failed : CallState::completed, now_ns);
  int kind = request->kind == RequestKind::send ? kind_of_send : kind_of_recv;
  if (!failed) {
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
  bool is_control = header->kind == request_to_send || header->kind == clear_to_send;
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

// Consumes a complete message: eager, request_to_send or clear_to_send.
void PointToPoint::handle(int peer, const Header& header) {
  Lane& from = lane(peer);
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

// Queues the next fragments. True if any was queued.
bool PointToPoint::stream(Sending& sending) {
  const Request& request = *sending.request;
  Lane& to = lane(request.peer);
  bool moved = false;
  for (size_t i = 0; i < fragments_per_turn && sending.posted < request.num_bytes; ++i) {
    if (!to.flushed()) break;
    size_t num_bytes = std::min(to.max_message_bytes(), request.num_bytes - sending.posted);
    Header header{.id = sending.receiver_id,
                  .size = sending.posted,
                  .length = static_cast<uint32_t>(num_bytes),
                  .kind = fragment,
                  .sender_waits = receiving_.empty() && posted_receives_.empty(),
                  .copy_mode = CopyMode::single};
    sending.last_number = post(request.peer, header, request.address + sending.posted);
    sending.posted += num_bytes;
    moved = true;
  }
  return moved;
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
  if (num_pending_ == 0) return moved || backlog_.settle();
  moved |= drain_all();
  std::erase_if(sending_, [&](Sending& sending) {
    moved |= stream(sending);
    const Request& request = *sending.request;
    if (sending.posted < request.num_bytes) return false;
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
  backlog_.clear();
  num_pending_ = 0;
}

void PointToPoint::close() {
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
}

}  // namespace hccl
