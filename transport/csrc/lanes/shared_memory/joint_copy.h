// A long message that both its ends copy: the receiver reads it out of the sender's process from
// the front, half of what is left at a time. A sender that would only wait writes into the
// receiver's process all that the receiver has not taken: when both begin together, each copies
// half in one call of the kernel.
//
// Each end stores what it takes in a JointEntry (segment.h) and then loads what the other end took,
// both seq_cst. Of two ends that take the same piece at least one sees that. A piece that both copy
// gets the same bytes twice.
//
// Nothing may be written once the receiver has its message or has given it up. So at its end the
// receiver stores `ended` and then loads `takes`. If `takes` names this message, the receiver waits
// until `wrote` does. If not, the sender takes its piece later, finds `ended` or another message,
// and writes nothing. The receiver reads every piece that the sender did not write.
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
  uint64_t number;  // of its entry, from 1
  size_t num_bytes;
};

class JointReader {
 public:
  JointReader(JointEntry& mine, const JointEntry& theirs) : mine_(mine), theirs_(theirs) {}

  enum class Outcome { copied, unfinished, unreadable };
  // `unfinished`: the sender still writes. Until `copied`, call it with the same arguments again,
  // or abandon().
  Outcome copy(const JointMessage& message, const RemoteMemory& memory, uint64_t source,
               std::byte* destination);
  // Returns when the sender will write nothing any more. A sender that was stopped while it wrote,
  // or has died, is waited for one second.
  void abandon();

 private:
  void end_message();
  bool is_writing() const;
  bool read(const JointMessage& message, size_t first, size_t end_piece);

  JointEntry& mine_;
  const JointEntry& theirs_;
  const RemoteMemory* memory_ = nullptr;
  uint64_t source_ = 0;
  std::byte* destination_ = nullptr;
  uint64_t number_ = 0;  // of the message under way; 0: none
  size_t num_read_ = 0;  // pieces, from the front
};

class JointWriter {
 public:
  JointWriter(JointEntry& mine, const JointEntry& theirs) : mine_(mine), theirs_(theirs) {}

  // Takes what is left of the message, once, if its receiver has begun to read it and has not
  // ended. True: call write().
  bool take(const JointMessage& message);
  // Writes what was taken, unless the receiver has ended meanwhile.
  void write(const JointMessage& message, const std::byte* source, const RemoteMemory& memory);

 private:
  JointEntry& mine_;
  const JointEntry& theirs_;
  uint64_t number_ = 0;
  size_t taken_ = 0;  // the first piece that was taken
};

}  // namespace hccl
