// A long message that both its ends copy: the receiver reads it out of the sender's process from the front, and a
// sender that has nothing else to do writes it into the receiver's process from the back.
//
// Each end says what it takes in a word of its own segment (segment.h: JointCell) and then looks at the other's
// word, both seq_cst: of two ends that take the same piece at least one sees the other. What both take gets the
// same bytes twice.
//
// Nothing is written any more once the receiver has its message, or has given it up. It ends its word and then looks
// at the sender's. Either it sees what the sender took last, and waits for its word that this is written or left;
// or the sender, which took it later, sees the end and leaves it. What the sender has left the receiver reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes/shared_memory/remote_memory.h"
#include "lanes/shared_memory/segment.h"

namespace hccl {

// Two pieces: a shorter message is read by its receiver alone.
inline constexpr size_t joint_piece_bytes = 32 << 10;
inline constexpr size_t min_joint_bytes = 2 * joint_piece_bytes;

// A message of one lane that lies in its sender's memory.
struct JointMessage {
  uint64_t number;  // of its cell, from 1
  size_t num_bytes;
};

class JointReader {
 public:
  JointReader(JointCell& mine, const JointCell& theirs) : mine_(mine), theirs_(theirs) {}

  enum class Outcome { copied, unfinished, unreadable };
  // `unfinished`: the sender still writes. Call again with the same arguments.
  Outcome copy(const JointMessage& message, const RemoteMemory& memory, uint64_t source, std::byte* destination);
  // Gives the message up. Returns once the sender writes nothing any more, at the latest after a second: its
  // process was stopped between two instructions, or has ended.
  void abandon();

 private:
  void end();
  bool is_writing() const;
  bool read(const JointMessage& message, size_t first, size_t end_piece);

  JointCell& mine_;
  const JointCell& theirs_;
  const RemoteMemory* memory_ = nullptr;
  uint64_t source_ = 0;
  std::byte* destination_ = nullptr;
  uint64_t number_ = 0;  // of the message under way; 0: none
  size_t num_read_ = 0;  // of its pieces, from the front
};

class JointWriter {
 public:
  JointWriter(JointCell& mine, const JointCell& theirs) : mine_(mine), theirs_(theirs) {}

  // Writes some pieces of it, if the receiver has begun to read it and has not ended. True if it did.
  bool help(const JointMessage& message, const std::byte* source, const RemoteMemory& memory);

 private:
  JointCell& mine_;
  const JointCell& theirs_;
  uint64_t number_ = 0;
  size_t taken_ = 0, written_ = 0;  // the first piece that was
};

}  // namespace hccl
