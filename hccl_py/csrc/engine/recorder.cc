#include "engine/recorder.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hccl {

namespace {

constexpr int num_attempts = 64;  // of a reader whose record is written meanwhile

std::atomic_ref<uint64_t> word(const uint64_t& value) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(value));
}

struct Bytes {
  uint64_t in = 0;
  uint64_t out = 0;
};

Bytes bytes_of(const Request& request) {
  if (request.kind == RequestKind::send) return {request.num_bytes, 0};
  if (request.kind == RequestKind::recv) return {0, request.num_bytes};
  const Call& call = request.call;
  // A call of blocks may still hold the data of the one before it.
  bool has_data = call.plan != nullptr && call.plan->data_chunks > 0;
  size_t in = has_data ? call.data.count : 0, out = in;
  for (const Span& block : call.input) in += block.count;
  for (const Span& block : call.output) out += block.count;
  size_t item = size_of(call.dtype);
  return {in * item, out * item};
}

}  // namespace

Recorder::Recorder()
    : slots_(static_cast<Slot*>(std::calloc(capacity, sizeof(Slot))), &std::free) {
  if (!slots_) throw std::bad_alloc();
}

void Recorder::write(const CallRecord& record) {
  Slot& slot = slot_of(record.id);
  uint64_t words[num_words];
  std::memcpy(words, &record, sizeof record);
  uint64_t before = slot.version;
  word(slot.version).store(before + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < num_words; ++i) {
    word(slot.words[i]).store(words[i], std::memory_order_release);
  }
  word(slot.version).store(before + 2, std::memory_order_release);
}

// Does nothing once a later call has replaced it.
template <typename Change>
void Recorder::change(uint64_t id, Change change) {
  CallRecord record;
  std::memcpy(&record, slot_of(id).words, sizeof record);
  if (record.id != id) return;
  change(record);
  write(record);
}

void Recorder::open(Request& request) {
  request.record = num_opened_.load(std::memory_order_relaxed);
  request.started_ns = 0;
  if (request.submitted == Deadline{}) request.submitted = Clock::now();
  Bytes bytes = bytes_of(request);
  bool collective = request.kind == RequestKind::collective;
  CallRecord record;
  record.id = request.record;
  record.kind = request.kind;
  record.sequence = collective ? request.sequence : 0;
  record.fingerprint = collective ? request.call.fingerprint : request.tag;
  record.peer = collective ? any_rank : request.peer;
  record.bytes_in = bytes.in;
  record.bytes_out = bytes.out;
  record.submitted_ns = steady_ns(request.submitted);
  write(record);
  num_opened_.store(record.id + 1, std::memory_order_release);
}

void Recorder::start(Request& request, uint64_t earliest_ns) {
  request.started_ns = std::max(steady_ns(request.submitted), earliest_ns);
  change(request.record, [&](CallRecord& record) {
    record.state = CallState::started;
    record.started_ns = request.started_ns;
    // Known only now: the number in a collective's fingerprint, and the sender of a recv from any.
    if (request.kind == RequestKind::collective) {
      record.fingerprint = request.call.fingerprint;
    } else {
      record.peer = request.peer;
    }
  });
}

void Recorder::end(const Request& request, CallState state, uint64_t ended_ns,
                   const Waiting& waiting, bool rendezvous) {
  change(request.record, [&](CallRecord& record) {
    record.state = state;
    record.ended_ns = ended_ns;
    record.waiting = waiting;
    record.rendezvous = rendezvous;
  });
}

void Recorder::fail_open() {
  uint64_t now_ns = steady_ns(Clock::now());
  for (const CallRecord& open : records()) {
    if (open.ended_ns != 0) continue;
    change(open.id, [&](CallRecord& record) {
      record.state = CallState::failed;
      record.ended_ns = now_ns;
    });
  }
}

std::optional<CallRecord> Recorder::read(uint64_t id) const {
  const Slot& slot = slot_of(id);
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    uint64_t before = word(slot.version).load(std::memory_order_acquire);
    uint64_t words[num_words];
    for (size_t i = 0; i < num_words; ++i) {
      words[i] = word(slot.words[i]).load(std::memory_order_acquire);
    }
    if (before & 1 || word(slot.version).load(std::memory_order_relaxed) != before) continue;
    CallRecord record;
    std::memcpy(&record, words, sizeof record);
    return record.id == id ? std::optional(record) : std::nullopt;
  }
  return std::nullopt;
}

std::vector<CallRecord> Recorder::records() const {
  uint64_t end = num_opened_.load(std::memory_order_acquire);
  uint64_t begin = end > capacity ? end - capacity : 0;
  std::vector<CallRecord> result;
  result.reserve(end - begin);
  for (uint64_t id = begin; id < end; ++id) {
    if (std::optional<CallRecord> record = read(id)) result.push_back(*record);
  }
  return result;
}

}  // namespace hccl
