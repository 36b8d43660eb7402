#include "lanes/shared_memory/joint_copy.h"

#include <algorithm>
#include <bit>

namespace hccl {

namespace {

// The value of an atomic of JointEntry. In `reads`, `piece` is the first piece that the receiver
// has not taken; in `takes`, the first that the sender has taken, and in `wrote`, the first that it
// has written.
struct Word {
  static constexpr uint64_t ended = 0xfff;

  uint64_t number : 52;
  uint64_t piece : 12;

  static Word load(const std::atomic<uint64_t>& from) {
    return std::bit_cast<Word>(from.load(std::memory_order_seq_cst));
  }
  void store(std::atomic<uint64_t>& to) const {
    to.store(std::bit_cast<uint64_t>(*this), std::memory_order_seq_cst);
  }
};

Word word(uint64_t number, size_t piece) {
  return {number & ((uint64_t{1} << 52) - 1), piece & Word::ended};
}

bool is_of(const Word& said, uint64_t number) { return said.number == word(number, 0).number; }

size_t pieces_of(const JointMessage& message) {
  return (message.num_bytes + joint_piece_bytes - 1) / joint_piece_bytes;
}
static_assert(max_long_bytes / joint_piece_bytes < Word::ended);

// Number of untaken pieces that the receiver takes at once. A sender that is there from the start
// takes the other half.
size_t share_of(size_t num_pieces) { return std::max<size_t>(1, num_pieces / 2); }

struct Part {
  size_t at, num_bytes;
};

Part part_of(const JointMessage& message, size_t first, size_t end) {
  size_t at = first * joint_piece_bytes;
  return {at, std::min(end * joint_piece_bytes, message.num_bytes) - at};
}

}  // namespace

bool JointReader::read(const JointMessage& message, size_t first, size_t end) {
  if (first >= end) return true;
  Part part = part_of(message, first, end);
  return memory_->read(source_ + part.at, destination_ + part.at, part.num_bytes);
}

JointReader::Outcome JointReader::copy(const JointMessage& message, const RemoteMemory& memory,
                                       uint64_t source, std::byte* destination) {
  if (number_ != message.number) {
    mine_.destination.store(reinterpret_cast<uint64_t>(destination), std::memory_order_relaxed);
    number_ = message.number;
    memory_ = &memory, source_ = source, destination_ = destination;
    size_t end = pieces_of(message);
    for (num_read_ = 0; num_read_ < end;) {
      size_t next = num_read_ + share_of(end - num_read_);
      word(number_, next).store(mine_.reads);
      Word taken = Word::load(theirs_.takes);
      if (is_of(taken, number_)) end = std::min<size_t>(end, taken.piece);
      next = std::min(next, end);
      if (!read(message, num_read_, next)) {
        end_message();
        return Outcome::unreadable;
      }
      num_read_ = next;
    }
    end_message();
  }
  if (is_writing()) return Outcome::unfinished;
  Word wrote = Word::load(theirs_.wrote);
  size_t written = is_of(wrote, number_) ? wrote.piece : pieces_of(message);
  if (!read(message, num_read_, std::min<size_t>(written, pieces_of(message)))) {
    return Outcome::unreadable;
  }
  number_ = 0;
  return Outcome::copied;
}

void JointReader::end_message() { word(number_, Word::ended).store(mine_.reads); }

// After end_message(): whether the sender has taken pieces, and has not confirmed them yet.
bool JointReader::is_writing() const {
  return is_of(Word::load(theirs_.takes), number_) && !is_of(Word::load(theirs_.wrote), number_);
}

bool JointReader::abandon() {
  if (number_ == 0) return true;
  end_message();
  if (is_writing()) return false;
  number_ = 0;
  return true;
}

bool JointWriter::take(const JointMessage& message) {
  Word reads = Word::load(theirs_.reads);
  if (number_ == message.number || !is_of(reads, message.number) ||
      reads.piece >= pieces_of(message)) {
    return false;
  }
  number_ = message.number;
  taken_ = reads.piece;
  word(number_, taken_).store(mine_.takes);
  return true;
}

void JointWriter::write(const JointMessage& message, const std::byte* source,
                        const RemoteMemory& memory) {
  size_t end = pieces_of(message), written = end;
  // The receiver may have moved to its next message after take().
  Word reads = Word::load(theirs_.reads);
  if (is_of(reads, number_) && reads.piece != Word::ended) {
    Part part = part_of(message, taken_, end);
    uint64_t destination = theirs_.destination.load(std::memory_order_relaxed);
    if (memory.write(destination + part.at, source + part.at, part.num_bytes)) written = taken_;
  }
  word(number_, written).store(mine_.wrote);
}

}  // namespace hccl
