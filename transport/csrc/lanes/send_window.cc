#include "lanes/send_window.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

constexpr size_t longest_small_bytes = 16384;
constexpr size_t first_entries = 64;

}  // namespace

size_t SendWindow::small_bytes(size_t slot_bytes) {
  return std::min(longest_small_bytes, slot_bytes / 4);
}

SendWindow::SendWindow(size_t slot_bytes)
    : slot_bytes_(slot_bytes), small_bytes_(small_bytes(slot_bytes)), entries_(first_entries) {}

uint64_t SendWindow::post(const Header& header, const std::byte* payload) {
  if (posted_ - acknowledged_ == entries_.size()) {
    std::vector<Outgoing> more(2 * entries_.size());
    for (uint64_t i = acknowledged_ + 1; i <= posted_; ++i) {
      more[i & (more.size() - 1)] = std::move(at(i));
    }
    entries_ = std::move(more);
  }
  Outgoing& entry = at(++posted_);
  entry.header = header;
  entry.payload = payload;
  entry.path = Outgoing::no_path;
  entry.was_sent = false;
  entry.owned = false;
  entry.ring_bytes = 0;
  return posted_;
}

void SendWindow::own(Outgoing& entry, const std::byte* copy) {
  if (copy != nullptr) entry.payload = copy;
  entry.owned = true;
  while (completed_ < posted_ && at(completed_ + 1).owned) ++completed_;
}

void SendWindow::keep(uint64_t number) {
  if (number <= acknowledged_) return;
  Outgoing& entry = at(number);
  size_t length = entry.header.length;
  if (length == 0) return own(entry, nullptr);
  if (length > small_bytes_) return;
  if (ring_.empty()) ring_.resize(num_small * small_bytes_);
  // In one piece: what is left at the end goes unused if it is too short.
  bool wraps = ring_end_ + length > ring_.size();
  size_t needed = length + (wraps ? ring_.size() - ring_end_ : 0);
  if (ring_used_ + needed > ring_.size()) return;
  if (wraps) ring_end_ = 0;
  std::memcpy(ring_.data() + ring_end_, entry.payload, length);
  entry.ring_bytes = needed;
  ring_used_ += needed;
  own(entry, ring_.data() + ring_end_);
  ring_end_ += length;
}

void SendWindow::detach() {
  if (completed_ == posted_ || num_detached_ == max_detached) return;
  Outgoing& entry = at(completed_ + 1);
  if (spare_.empty()) spare_.emplace_back(new std::byte[slot_bytes_]);
  entry.copy = std::move(spare_.back());
  spare_.pop_back();
  ++num_detached_;
  std::memcpy(entry.copy.get(), entry.payload, entry.header.length);
  own(entry, entry.copy.get());
}

void SendWindow::acknowledge(uint64_t number) {
  while (acknowledged_ < number) {
    Outgoing& entry = at(++acknowledged_);
    ring_used_ -= entry.ring_bytes;
    if (!entry.copy) continue;
    spare_.push_back(std::move(entry.copy));
    --num_detached_;
  }
  completed_ = std::max(completed_, acknowledged_);
  // After a jump those behind it may be owned already.
  while (completed_ < posted_ && at(completed_ + 1).owned) ++completed_;
}

}  // namespace hccl
