// The failing half of Communicator: how something wrong becomes the one failure that ends its calls.
//
//   fail()      what this rank noticed. Without a coordinator that is the end. With one the rank stops
//               moving data at once, keeps its calls waiting, and proposes its failure.
//   conclude()  the verdict of all ranks' coordinator, or what a peer passed on of it. It ends the
//               calls, and goes out over all control links: so it outlives the coordinator and
//               reaches ranks whose Python is busy.
//
// A verdict that does not come in time is replaced by the proposal.
#include <unistd.h>

#include <algorithm>

#include "engine/communicator.h"

namespace hccl {

namespace {

constexpr auto explanation_time = std::chrono::milliseconds(300);
// How long the driver may take to tell how far it has got.
constexpr auto answer_time = std::chrono::milliseconds(20);

std::string join(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

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
  Failure failure;
  failure.kind = FailureKind::timed_out;
  const std::vector<int>& ranks = progress.waiting_for;
  if (!ranks.empty()) failure.rank = ranks.front();
  failure.expected = progress.fingerprint;
  failure.sequence = progress.sequence;
  failure.text = (ranks.empty() ? "" : "waiting for " + join(ranks) + " ") + "at " +
                 progress.position + trouble_with(ranks);
  return failure;
}

void Communicator::check_deadlines() {
  Deadline now = Clock::now();
  if (verdict_deadline_) {
    if (now >= *verdict_deadline_) end_all(proposal_);
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
  Failure failure;
  failure.kind = FailureKind::timed_out;
  failure.rank = late->peer;
  failure.text = "a message was half-way when its time was up" + trouble_with({late->peer});
  fail(failure);
}

void Communicator::left_or_lost(int peer, const std::string& what) {
  ControlLink& link = *links_[static_cast<size_t>(peer)];
  Failure failure;
  failure.kind = FailureKind::peer_lost;
  failure.rank = peer;
  if (active_) {
    failure.expected = active_->call.fingerprint;
    failure.sequence = active_->sequence;
  }
  switch (link.state()) {
    case ControlLink::State::open: failure.text = "can be reached no more: " + what; break;
    case ControlLink::State::left:
      failure.text = "left after collective " + std::to_string(link.last_sequence());
      if (!link.last_words().empty()) failure.text += " (handling " + link.last_words() + ")";
      break;
    case ControlLink::State::lost:
      failure.text = link.process_lives()
                         ? "can be reached no more: a connection closed, though its process lives"
                         : "died: " + what;
      break;
  }
  fail(failure);
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
    if (waits_for(peer)) left_or_lost(peer, "");
  }
}

// ---------------------------------------------------------------- what becomes of it

void Communicator::fail(Failure failure) {
  if (failure.settled || verdict_timeout_s_ <= 0) return end_all(std::move(failure));
  if (verdict_deadline_) return;
  CallProgress progress = measure_progress();
  {
    std::lock_guard lock(mutex_);
    if (failure_.kind != FailureKind::none) return;
    note_progress(std::move(progress));
    proposal_ = std::move(failure);
  }
  verdict_deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(verdict_timeout_s_));
  stop_moving();
  tell_news();
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

void Communicator::end_all(Failure failure) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = failure_.kind == FailureKind::none;
    if (first) failure_ = std::move(failure);
  }
  verdict_deadline_.reset();
  stop_moving();
  if (first) {
    for (auto& link : links_) {
      if (link && link->state() == ControlLink::State::open) link->report(failure_);
    }
  }
  for (const RequestPtr& request : doomed_) request->fail(failure_);
  doomed_.clear();
  if (first) tell_news();
  std::lock_guard lock(mutex_);
  baton_passed_.notify_all();
}

void Communicator::announce(Failure verdict) {
  verdict.settled = true;
  std::lock_guard lock(mutex_);
  if (failure_.kind != FailureKind::none || closed_ || asked(ask_verdict)) return;
  verdict_ = std::move(verdict);
  asks_.fetch_or(ask_verdict, std::memory_order_seq_cst);
}

void Communicator::conclude(Failure verdict) {
  announce(std::move(verdict));
  drive_once();
}

bool Communicator::obey() {
  Failure failure;
  unsigned asks;
  {
    std::lock_guard lock(mutex_);
    asks = asks_.exchange(0, std::memory_order_seq_cst);
    if (asks & ask_verdict) {
      failure = verdict_;
    } else if (asks & (ask_abort | ask_close)) {
      failure.kind = FailureKind::aborted;
      failure.rank = options_.rank;
      failure.text = stop_reason_;
    }
  }
  if (asks & ask_progress) answer_progress();
  bool spared = (asks & (ask_verdict | ask_abort)) == 0 && !calls_left();
  if (failure.kind == FailureKind::none || spared) return false;
  fail(std::move(failure));
  return true;
}

std::optional<Failure> Communicator::take_proposal() {
  uint64_t count;
  [[maybe_unused]] ssize_t got = ::read(news_.get(), &count, sizeof count);
  std::lock_guard lock(mutex_);
  if (proposal_.kind == FailureKind::none || std::exchange(proposal_taken_, true)) {
    return std::nullopt;
  }
  return proposal_;
}

std::vector<GoneRank> Communicator::gone_ranks() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

void Communicator::note_gone(const ControlLink& link) {
  if (link.state() == ControlLink::State::open) return;
  {
    std::lock_guard lock(mutex_);
    auto is_known = [&](const GoneRank& gone) { return gone.rank == link.peer(); };
    if (std::any_of(gone_.begin(), gone_.end(), is_known)) return;
    gone_.push_back(
        {link.peer(), link.state() == ControlLink::State::left, link.last_sequence()});
  }
  tell_news();
}

void Communicator::tell_news() {
  signal_event(news_);
}

void Communicator::look() {
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
    if (proposal_.kind != FailureKind::none || closed_) return progress_made_;
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
  if (proposal_.kind == FailureKind::none) note_progress(std::move(progress));
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
    progress.position = in_place_->position();
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
    if (progress.position.empty()) progress.position = channel.position();
  }
  std::sort(progress.waiting_for.begin(), progress.waiting_for.end());
  if (active_->tiling.num_tiles() > 0) {
    double tiles = static_cast<double>(active_->tiling.num_tiles());
    progress.bytes_done = static_cast<size_t>(done / tiles * static_cast<double>(call.total_bytes));
  }
  return progress;
}

}  // namespace hccl
