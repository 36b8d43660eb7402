// A long message that both ends copy: the receiver reads it from the sender's process from the
// front, half of the rest at a time. A sender that would only wait writes the untaken rest into the
// receiver's process: if both begin together, each copies half in one system call.
//
// Each end stores the pieces that it takes in a JointEntry (segment.h) and then loads the other
// end's, both seq_cst. If two ends take the same piece, at least one sees that. A piece that both
// copy gets the same bytes twice.
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

// A message of one lane in its sender's memory.
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
  // Ends the message under way. False: the sender may still write; call it again.
  bool abandon();

 private:
  void end_message();
  bool is_writing() const;
  bool read(const JointMessage& message, size_t first, size_t end_piece);

  JointEntry& mine_;
  const JointEntry& theirs_;
  const RemoteMemory* memory_ = nullptr;
  uint64_t source_ = 0;
  std::byte* destination_ = nullptr;
  uint64_t number_ = 0;  // of the current message; 0: none
  size_t num_read_ = 0;  // pieces, from the front
};

class JointWriter {
 public:
  JointWriter(JointEntry& mine, const JointEntry& theirs) : mine_(mine), theirs_(theirs) {}

  // Takes the rest of the message, once, if its receiver has begun to read it and has not ended.
  // True: call write().
  bool take(const JointMessage& message);
  // Writes the taken pieces, unless the receiver has ended.
  void write(const JointMessage& message, const std::byte* source, const RemoteMemory& memory);

 private:
  JointEntry& mine_;
  const JointEntry& theirs_;
  uint64_t number_ = 0;
  size_t taken_ = 0;  // the first piece that was taken
};

}  // namespace hccl
