#include "lanes/send_window.h"

#include <algorithm>
#include <cstring>

namespace hccl {

namespace {

constexpr size_t longest_small_bytes = 16384;

}  // namespace

size_t SendWindow::small_bytes(size_t slot_bytes) {
  return std::min(longest_small_bytes, slot_bytes / 4);
}

uint64_t SendWindow::post(const Header& header, const std::byte* payload) {
  Outgoing& entry = entries_.emplace_back();
  entry.header = header;
  entry.payload = payload;
  return posted();
}

void SendWindow::own(Outgoing& entry, PayloadBuffer copy) {
  if (entry.header.length) std::memcpy(copy.get(), entry.payload, entry.header.length);
  entry.payload = copy.get();
  entry.copy = std::move(copy);
  entry.owned = true;
  count_completed();
}

void SendWindow::count_completed() {
  completed_ = std::max(completed_, acknowledged_);
  while (completed_ < posted() && at(completed_ + 1).owned) ++completed_;
}

void SendWindow::keep(uint64_t number) {
  if (number <= acknowledged_) return;
  Outgoing& entry = at(number);
  size_t length = entry.header.length;
  if (length > small_bytes_ || kept_bytes_ + length > num_small * small_bytes_) return;
  kept_bytes_ += length;
  own(entry, PayloadBuffer(new std::byte[length]));
}

void SendWindow::detach() {
  if (completed_ == posted() || num_detached_ == max_detached) return;
  Outgoing& entry = at(completed_ + 1);
  ++num_detached_;
  entry.detached = true;
  own(entry, pool_.take());
}

void SendWindow::acknowledge(uint64_t number) {
  for (; acknowledged_ < number; ++acknowledged_) {
    Outgoing& entry = entries_.front();
    if (entry.detached) {
      pool_.put(std::move(entry.copy));
      --num_detached_;
    } else if (entry.owned) {
      kept_bytes_ -= entry.header.length;
    }
    entries_.pop_front();
  }
  count_completed();
}

}  // namespace hccl
