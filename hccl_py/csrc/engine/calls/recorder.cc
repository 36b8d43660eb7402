#include "engine/calls/recorder.h"

#include <algorithm>
#include <new>

namespace hccl {

namespace {

constexpr int num_attempts = 64;  // of a reader, while its record is being written

std::atomic_ref<uint64_t> word(const uint64_t& value) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(value));
}

struct Bytes {
  uint64_t in = 0;
  uint64_t out = 0;
};

Bytes bytes_of(const Request& request) {
  if (request.kind == RequestKind::recv) return {0, request.num_bytes};
  if (request.kind != RequestKind::collective) return {request.num_bytes, 0};
  const Call& call = request.call;
  // A call on blocks may still have the `data` of an earlier call.
  bool has_data = call.plan != nullptr && call.plan->data_chunks > 0;
  size_t in = has_data ? call.data.count : 0, out = in;
  for (const Span& block : call.input) in += block.count;
  for (const Span& block : call.output) out += block.count;
  size_t item = size_of(call.dtype);
  return {in * item, out * item};
}

// Wraps every change of a record, whose first word is its version.
class Change {
 public:
  explicit Change(uint64_t* words) : words_(words), before_(words[0]) {
    word(words_[0]).store(before_ + 1, std::memory_order_relaxed);
  }
  ~Change() { word(words_[0]).store(before_ + 2, std::memory_order_release); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  template <typename T>
  void set(int which, T value) {
    word(words_[which]).store(static_cast<uint64_t>(value), std::memory_order_release);
  }

 private:
  uint64_t* const words_;
  const uint64_t before_;
};

}  // namespace

Recorder::Recorder()
    : words_(static_cast<uint64_t*>(std::calloc(capacity * num_words, sizeof(uint64_t))),
             &std::free) {
  if (!words_) throw std::bad_alloc();
}

void Recorder::open(Request& request) {
  request.record = num_opened_.load(std::memory_order_relaxed);
  request.started_ns = 0;
  if (request.submitted == Deadline{}) request.submitted = Clock::now();
  Bytes bytes = bytes_of(request);
  bool collective = request.kind == RequestKind::collective;
  {
    Change change(words_of(request.record));
    change.set(id, request.record);
    change.set(kind, request.kind);
    change.set(sequence, collective ? request.sequence : 0);
    change.set(fingerprint, collective ? request.call.fingerprint : request.tag);
    change.set(peer, collective ? any_rank : request.peer);
    change.set(bytes_in, bytes.in);
    change.set(bytes_out, bytes.out);
    change.set(submitted, steady_ns(request.submitted));
    change.set(straggler, any_rank);
    for (int which : {state, started, ended, rendezvous, waited, waited_until})
      change.set(which, 0);
  }
  num_opened_.store(request.record + 1, std::memory_order_release);
}

void Recorder::start(Request& request, uint64_t earliest_ns) {
  request.started_ns = std::max(steady_ns(request.submitted), earliest_ns);
  uint64_t* words = words_of(request.record);
  if (words[id] != request.record) return;  // a later call replaced it
  Change change(words);
  change.set(state, CallState::started);
  change.set(started, request.started_ns);
  // Known only now: a collective's number, and the sender of a recv from any rank.
  if (request.kind == RequestKind::collective) {
    change.set(fingerprint, request.call.fingerprint);
  } else {
    change.set(peer, request.peer);
  }
}

void Recorder::end(const Request& request, CallState how, uint64_t ended_ns, const Waiting& waiting,
                   bool is_rendezvous) {
  uint64_t* words = words_of(request.record);
  if (words[id] != request.record) return;
  Change change(words);
  change.set(state, how);
  change.set(ended, ended_ns);
  change.set(rendezvous, is_rendezvous);
  change.set(waited, waiting.total_ns);
  change.set(waited_until, waiting.until_ns);
  change.set(straggler, waiting.straggler);
}

void Recorder::fail_open() {
  uint64_t now_ns = steady_ns(Clock::now());
  for (const CallRecord& open : records()) {
    if (open.ended_ns != 0) continue;
    Change change(words_of(open.id));
    change.set(state, CallState::failed);
    change.set(ended, now_ns);
  }
}

std::optional<CallRecord> Recorder::read(uint64_t number) const {
  const uint64_t* words = words_of(number);
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    uint64_t copy[num_words];
    for (int i = 0; i < num_words; ++i) copy[i] = word(words[i]).load(std::memory_order_acquire);
    bool is_whole = word(words[version]).load(std::memory_order_relaxed) == copy[version];
    if (!is_whole || copy[version] & 1) continue;
    if (copy[id] != number) return std::nullopt;
    Waiting waiting{copy[waited], copy[waited_until], static_cast<int>(copy[straggler])};
    return CallRecord{number,
                      static_cast<RequestKind>(copy[kind]),
                      static_cast<CallState>(copy[state]),
                      copy[rendezvous] != 0,
                      copy[sequence],
                      copy[fingerprint],
                      static_cast<int>(copy[peer]),
                      copy[bytes_in],
                      copy[bytes_out],
                      copy[submitted],
                      copy[started],
                      copy[ended],
                      waiting};
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
