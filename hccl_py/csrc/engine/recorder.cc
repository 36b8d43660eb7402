#include "engine/recorder.h"

#include <algorithm>
#include <new>

namespace hccl {

namespace {

// How a record's words are packed: two numbers a word where both fit.
constexpr int version_bits = 8;  // counts the changes of one record
constexpr int rank_bits = 16;    // rank + 1, 0 for none
constexpr uint64_t rank_mask = (1 << rank_bits) - 1;
constexpr int status_bits = 8;  // kind, state, in place; above them the sequence number
constexpr int state_shift = 2;
constexpr uint64_t state_mask = 3 << state_shift;
constexpr uint64_t rendezvous_bit = 1 << 4;
constexpr uint64_t waited_bit = 1 << 5;  // the words that lie apart are this call's
constexpr int num_attempts = 64;       // of a reader whose record is written meanwhile
constexpr size_t words_per_record = 64 / sizeof(uint64_t);  // a cache line

std::atomic_ref<uint64_t> word(const uint64_t& value) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(value));
}

uint64_t get(const uint64_t& value) { return word(value).load(std::memory_order_acquire); }
void set(uint64_t& value, uint64_t to) { word(value).store(to, std::memory_order_release); }

void set_state(uint64_t& status, CallState state, uint64_t flags = 0) {
  set(status, (get(status) & ~state_mask) | flags | static_cast<uint64_t>(state) << state_shift);
}

uint64_t with_rank(uint64_t number, int rank) {
  return number << rank_bits | (static_cast<uint64_t>(rank + 1) & rank_mask);
}

int rank_in(uint64_t value) { return static_cast<int>(value & rank_mask) - 1; }

uint64_t* aligned(uint64_t* words) {
  uintptr_t address = reinterpret_cast<uintptr_t>(words);
  return words + (64 - address % 64) % 64 / sizeof(uint64_t);
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

// What stands around every change of a record.
class Change {
 public:
  explicit Change(uint64_t& version) : Change(version, get(version)) {}
  Change(uint64_t& version, uint64_t before) : version_(version), before_(before) {
    word(version_).store(before_ | 1, std::memory_order_relaxed);
  }
  ~Change() { set(version_, (before_ & ~uint64_t{1}) + 2); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  uint64_t& version_;
  const uint64_t before_;
};

}  // namespace

// Zero is the version of a record that was never written.
Recorder::Recorder()
    : memory_(static_cast<uint64_t*>(std::calloc(capacity * (num_words + num_extra) + words_per_record,
                                                 sizeof(uint64_t))),
              &std::free),
      records_(aligned(memory_.get())),
      sides_(records_ + capacity * num_words) {
  if (!memory_) throw std::bad_alloc();
}

// nullptr once a later call has replaced it.
uint64_t* Recorder::words_of(uint64_t id) const {
  uint64_t* words = words_at(id);
  return get(words[version]) >> version_bits == id + 1 ? words : nullptr;
}

void Recorder::open(Request& request) {
  uint64_t id = num_opened_.load(std::memory_order_relaxed);
  request.record = id;
  request.started_ns = 0;
  if (request.submitted == Deadline{}) request.submitted = Clock::now();
  Bytes bytes = bytes_of(request);
  bool collective = request.kind == RequestKind::collective;
  uint64_t* words = words_at(id);
  {
    Change change(words[version], (id + 1) << version_bits);
    set(words[fingerprint], collective ? request.call.fingerprint : request.tag);
    uint64_t sequence = collective ? request.sequence : 0;
    set(words[status], sequence << status_bits | static_cast<uint64_t>(request.kind));
    set(words[submitted], steady_ns(request.submitted));
    set(words[started], 0);
    set(words[ended], 0);
    set(words[input], with_rank(bytes.in, collective ? any_rank : request.peer));
    set(words[output], with_rank(bytes.out, any_rank));
  }
  num_opened_.store(id + 1, std::memory_order_release);
}

void Recorder::start(Request& request, uint64_t earliest_ns) {
  request.started_ns = std::max(steady_ns(request.submitted), earliest_ns);
  uint64_t* words = words_of(request.record);
  if (words == nullptr) return;
  Change change(words[version]);
  // Known only now: the number in a collective's fingerprint, and the sender of a recv from any rank.
  if (request.kind == RequestKind::collective) {
    set(words[fingerprint], request.call.fingerprint);
  } else {
    set(words[input], with_rank(get(words[input]) >> rank_bits, request.peer));
  }
  set(words[started], request.started_ns);
  set_state(words[status], CallState::started);
}

void Recorder::end(const Request& request, CallState state, uint64_t ended_ns,
                   const Waiting& waiting, bool rendezvous) {
  uint64_t* words = words_of(request.record);
  if (words == nullptr) return;
  uint64_t flags = (rendezvous ? rendezvous_bit : 0) | (waiting.total_ns ? waited_bit : 0);
  Change change(words[version]);
  set(words[ended], ended_ns);
  set_state(words[status], state, flags);
  if (waiting.total_ns == 0) return;
  set(words[output], with_rank(get(words[output]) >> rank_bits, waiting.straggler));
  uint64_t* side = sides_ + request.record % capacity * num_extra;
  set(side[waited], waiting.total_ns);
  set(side[waited_until], waiting.until_ns);
}

void Recorder::fail_open() {
  uint64_t now_ns = steady_ns(Clock::now());
  for (uint64_t id = 0; id < capacity; ++id) {
    uint64_t* words = words_at(id);
    if (get(words[version]) == 0 || get(words[ended]) != 0) continue;
    Change change(words[version]);
    set(words[ended], now_ns);
    set_state(words[status], CallState::failed);
  }
}

std::optional<CallRecord> Recorder::read(uint64_t id) const {
  const uint64_t* words = words_at(id);
  const uint64_t* extra = sides_ + id % capacity * num_extra;
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    uint64_t before = get(words[version]);
    if (before >> version_bits != id + 1) return std::nullopt;
    if (before & 1) continue;
    uint64_t flags = get(words[status]), in = get(words[input]), out = get(words[output]);
    bool has_waited = (flags & waited_bit) != 0;
    CallRecord record;
    record.id = id;
    record.kind = static_cast<RequestKind>(flags & 3);
    record.state = static_cast<CallState>((flags & state_mask) >> state_shift);
    record.rendezvous = (flags & rendezvous_bit) != 0;
    record.sequence = flags >> status_bits;
    record.fingerprint = get(words[fingerprint]);
    record.peer = rank_in(in);
    record.bytes_in = in >> rank_bits;
    record.bytes_out = out >> rank_bits;
    record.submitted_ns = get(words[submitted]);
    record.started_ns = get(words[started]);
    record.ended_ns = get(words[ended]);
    if (has_waited) record.waiting = {get(extra[waited]), get(extra[waited_until]), rank_in(out)};
    if (word(words[version]).load(std::memory_order_relaxed) == before) return record;
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
