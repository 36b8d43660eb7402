// The failing half of Communicator: how what this rank observes becomes the one failure that ends its
// calls.
//
//   fail()             what this rank observed. Without a coordinator that is the end. With one the
//                      rank stops moving data at once, keeps its calls waiting, and reports.
//   adopt_diagnosis()  what the coordinator made of all reports. It ends the calls.
//
// A diagnosis that does not come in time is replaced by the report.
#include <unistd.h>

#include <algorithm>

#include "engine/communicator.h"

namespace hccl {

namespace {

// A lane may break before its control link says why.
constexpr auto explanation_time = std::chrono::milliseconds(300);
// From the end of a dying process's connections until the process has ended.
constexpr auto dying_time = std::chrono::milliseconds(100);
// How long the driver may take to tell how far it has got.
constexpr auto answer_time = std::chrono::milliseconds(20);

}  // namespace

// ---------------------------------------------------------------- what is noticed

// A lane and its control link close together, but the news may arrive in either order.
void Communicator::await_explanation(int peer) {
  Deadline until = Clock::now() + explanation_time;
  ControlLink& link = *links_[static_cast<size_t>(peer)];
  do {
    handle_events(10);
  } while (link.state() == ControlLink::State::open && !failure() && Clock::now() < until);
}

Failure Communicator::timed_out() const {
  CallProgress progress = measure_progress();
  const std::vector<int>& ranks = progress.waiting_for;
  Failure failure = observed(Cause::timed_out, ranks.empty() ? any_rank : ranks.front());
  failure.call = progress.fingerprint;
  failure.sequence = progress.sequence;
  failure.stage = progress.stage;
  failure.waiting_for = ranks;
  failure.paths = troubles_with(ranks);
  return failure;
}

void Communicator::check_deadlines() {
  Deadline now = Clock::now();
  if (diagnosis_deadline_) {
    if (now >= *diagnosis_deadline_) end_all(report_);
    return;
  }
  auto is_late = [now](const RequestPtr& request) { return now >= request->deadline; };
  if (active_ && (is_late(active_) ||
                  std::any_of(collectives_.begin(), collectives_.end(), is_late))) {
    fail(timed_out());
  }
  if (point_to_point_->idle()) return;
  RequestPtr late = point_to_point_->expire(now);
  if (!late) return;
  Failure failure = observed(Cause::timed_out, late->peer);
  failure.half_done = true;
  failure.paths = troubles_with({late->peer});
  fail(std::move(failure));
}

// `error`: what a lane to that rank reported; empty: its connections closed.
void Communicator::fail_by_peer(int peer, const std::string& error) {
  ControlLink& link = *links_[static_cast<size_t>(peer)];
  Failure failure = observed(Cause::unreachable, peer);
  if (active_) {
    failure.call = active_->call.fingerprint;
    failure.sequence = active_->sequence;
  }
  note_ended(link);
  if (link.state() == ControlLink::State::open) {
    failure.error = error;
    failure.paths = troubles_with({peer});
    return fail(std::move(failure));
  }
  std::vector<EndedPeer> ended = ended_peers();
  auto its_end = std::find_if(ended.begin(), ended.end(),
                              [peer](const EndedPeer& one) { return one.rank == peer; });
  failure.cause = its_end->cause;
  failure.last_sequence = its_end->last_sequence;
  failure.exit_code = its_end->exit_code;
  failure.signal = its_end->signal;
  failure.process_lives = failure.cause == Cause::unreachable;
  failure.error = failure.cause == Cause::left ? link.error() : error;
  fail(std::move(failure));
}

bool Communicator::waits_for(int peer) {
  if (point_to_point_->waits_for(peer)) return true;
  if (!active_) return false;
  if (in_place_) {
    std::vector<int> ranks = in_place_->waiting_for();
    if (std::find(ranks.begin(), ranks.end(), peer) != ranks.end()) return true;
  }
  return std::any_of(channels_.begin(), channels_.end(), [peer](Channel& channel) {
    std::vector<int> ranks = channel.waiting_for();
    return std::find(ranks.begin(), ranks.end(), peer) != ranks.end();
  });
}

// A rank of this node that left has written all it had to say before its goodbye, so whoever still
// waits for it after another look waits in vain. Of other nodes a goodbye may overtake the data; but
// their lanes end after the last byte, and tell so themselves.
void Communicator::check_leavers() {
  for (int peer : options_.local_ranks) {
    const std::unique_ptr<ControlLink>& link = links_[static_cast<size_t>(peer)];
    if (!link || link->state() != ControlLink::State::left) continue;
    if (progress_or_fail()) return;
    if (waits_for(peer)) fail_by_peer(peer, {});
  }
}

// ---------------------------------------------------------------- what becomes of it

void Communicator::fail(Failure failure) {
  auto kept = std::make_shared<Failure>(std::move(failure));
  if (!kept->diagnosis.empty() || diagnosis_timeout_s_ <= 0) return end_all(std::move(kept));
  if (diagnosis_deadline_) return;
  CallProgress progress = measure_progress();
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    note_progress(std::move(progress));
    report_taken_ = diagnosis_ != nullptr;  // what comes after the diagnosis is no news
    report_ = diagnosis_ ? diagnosis_ : std::move(kept);
  }
  diagnosis_deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(diagnosis_timeout_s_));
  stop_moving();
  notify();
}

// Nothing is read into the callers' buffers or sent from them after this; the calls end later.
void Communicator::stop_moving() {
  {
    std::lock_guard lock(mutex_);
    for (const RequestPtr& request : incoming_) recorder_.open(*request);
    doomed_.insert(doomed_.end(), incoming_.begin(), incoming_.end());
    incoming_.clear();
    num_incoming_.store(0, std::memory_order_seq_cst);
  }
  record_failure();
  if (active_) doomed_.push_back(std::move(active_));
  active_.reset();
  doomed_.insert(doomed_.end(), collectives_.begin(), collectives_.end());
  collectives_.clear();
  doomed_.insert(doomed_.end(), accepted_.begin(), accepted_.end());
  accepted_.clear();
  segment_->withdraw();
  for (Channel& channel : channels_) channel.abandon();
  if (in_place_) in_place_->abandon();
  for (const RequestPtr& request : point_to_point_->abandon()) doomed_.push_back(request);
}

void Communicator::end_all(FailurePtr failure) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = !failure_;
    if (first) failure_ = std::move(failure);
  }
  diagnosis_deadline_.reset();
  stop_moving();
  for (const RequestPtr& request : doomed_) request->fail(failure_);
  doomed_.clear();
  if (first) notify();
  std::lock_guard lock(mutex_);
  baton_passed_.notify_all();
}

void Communicator::adopt_diagnosis(Cause cause, std::string diagnosis) {
  Failure failure = observed(cause, any_rank);
  failure.diagnosis = std::move(diagnosis);
  std::lock_guard lock(mutex_);
  if (!failure_ && !diagnosis_) diagnosis_ = std::make_shared<Failure>(std::move(failure));
}

void Communicator::apply_diagnosis() {
  {
    std::lock_guard lock(mutex_);
    if (failure_ || closed_ || !diagnosis_) return;
    asked_ = diagnosis_;
    asks_.fetch_or(ask_diagnosis, std::memory_order_seq_cst);
  }
  drive_once();
}

bool Communicator::obey() {
  FailurePtr failure;
  unsigned asks;
  {
    std::lock_guard lock(mutex_);
    asks = asks_.exchange(0, std::memory_order_seq_cst);
    if (asks & (ask_diagnosis | ask_abort | ask_close)) failure = asked_;
  }
  if (asks & ask_progress) answer_progress();
  bool spared = (asks & (ask_diagnosis | ask_abort)) == 0 && !calls_left();
  if (!failure || spared) return false;
  fail(*failure);
  return true;
}

FailurePtr Communicator::take_report() {
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(news_.get(), &count, sizeof count);
  std::lock_guard lock(mutex_);
  if (!report_ || std::exchange(report_taken_, true)) return nullptr;
  return report_;
}

std::vector<EndedPeer> Communicator::ended_peers() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void Communicator::note_ended(const ControlLink& link) {
  if (link.state() == ControlLink::State::open) return;
  auto is_known = [&](const EndedPeer& one) { return one.rank == link.peer(); };
  std::vector<EndedPeer> known = ended_peers();
  if (std::any_of(known.begin(), known.end(), is_known)) return;
  EndedPeer ended;
  ended.rank = link.peer();
  ended.last_sequence = link.last_sequence();
  if (link.state() == ControlLink::State::lost) {
    const std::vector<int>& ranks = options_.local_ranks;
    bool is_local = std::find(ranks.begin(), ranks.end(), link.peer()) != ranks.end();
    ended.cause = is_local ? Cause::died : Cause::lost;
    if (link.process() != 0) note_process(link.process(), ended);
  }
  {
    std::lock_guard lock(mutex_);
    ended_.push_back(ended);
  }
  notify();
}

// What the kernel knows of a process whose connections have closed.
void Communicator::note_process(pid_t process, EndedPeer& ended) {
  Descriptor process_fd = open_process(process);
  if (process_fd.get() < 0) return;
  for (Deadline until = Clock::now() + dying_time; !has_ended(process_fd);) {
    if (Clock::now() >= until) {
      ended.cause = Cause::unreachable;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ProcessEnd end = end_of_process(process, process_fd);
  ended.exit_code = end.exit_code;
  ended.signal = end.signal;
}

void Communicator::notify() {
  signal_event(news_);
}

void Communicator::poll() {
  if (!try_take_baton()) return;
  check_neglected();
  pass_baton();
}

// Has the driver look at asks_ now, whoever that is. Whoever drops the baton looks once more.
void Communicator::drive_once() {
  wake();
  if (!try_take_baton()) return;
  progress_or_fail();
  pass_baton();
}

// ---------------------------------------------------------------- how far this rank has got

CallProgress Communicator::progress_made() {
  uint64_t before;
  {
    std::lock_guard lock(mutex_);
    // What was under way when it failed is what matters then.
    if (report_ || closed_) return progress_made_;
    before = num_answers_;
    asks_.fetch_or(ask_progress, std::memory_order_seq_cst);
  }
  drive_once();
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, answer_time, [&] { return num_answers_ != before; });
  // Known without the driver, which may be waiting for a core: who has called has arrived.
  progress_made_.submitted = sequence_;
  return progress_made_;
}

void Communicator::answer_progress() {
  CallProgress progress = measure_progress();
  std::lock_guard lock(mutex_);
  if (!report_) note_progress(std::move(progress));
  ++num_answers_;
  answered_.notify_all();
}

// With the mutex.
void Communicator::note_progress(CallProgress progress) {
  progress_made_ = std::move(progress);
  progress_made_.submitted = sequence_;
}

CallProgress Communicator::measure_progress() const {
  CallProgress progress;
  progress.finished = statistics_.collectives.value();
  progress.num_transfers = point_to_point_->num_pending();
  if (!active_) return progress;
  const Call& call = active_->call;
  progress.sequence = active_->sequence;
  progress.fingerprint = call.fingerprint;
  progress.timeout_s =
      std::chrono::duration<double>(active_->deadline - active_->submitted).count();
  progress.bytes_total = call.total_bytes;
  if (in_place_ && in_place_->state() != InPlace::State::idle) {
    progress.stage = in_place_->stage();
    progress.waiting_for = in_place_->waiting_for();
    return progress;
  }
  double done = 0;
  for (int i = 0; i < options_.num_channels; ++i) {
    const Channel& channel = channels_[static_cast<size_t>(i)];
    done += channel.tiles_done(active_->tiling, i, options_.num_channels);
    if (channel.finished()) continue;
    for (int rank : channel.waiting_for()) {
      auto& ranks = progress.waiting_for;
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
    }
    if (progress.stage.num_steps == 0) progress.stage = channel.stage();
  }
  std::sort(progress.waiting_for.begin(), progress.waiting_for.end());
  if (active_->tiling.num_tiles() > 0) {
    double tiles = static_cast<double>(active_->tiling.num_tiles());
    progress.bytes_done = static_cast<size_t>(done / tiles * static_cast<double>(call.total_bytes));
  }
  return progress;
}

}  // namespace hccl
