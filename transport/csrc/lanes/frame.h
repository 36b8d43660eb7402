// What a message looks like on a connection between two hosts.
//
// In this machine's byte order; of another one the magic number is wrong. Whatever does not fit, a wrong
// magic or serial number, an impossible length, a bad checksum, has one answer: the connection is
// closed, and what was not acknowledged is sent again on another one.
#pragma once

#include "lanes/lane.h"

namespace hccl {

struct Frame {
  enum Kind : uint16_t {
    data = 1,
    ack = 2,    // nothing but `acknowledged`
    probe = 3,  // asks for an ack, and shows by its serial number whether something went missing
  };
  uint16_t magic = 0x4c48;
  uint16_t kind = data;
  uint32_t serial = 0;        // of this connection: 0 for its first frame, then counting up
  uint64_t sequence = 0;      // data: the message's number in its lane, 1 for the first
  uint64_t acknowledged = 0;  // the other direction's messages up to this number have arrived
  uint32_t header_crc = 0;    // with checksums on: of this frame with both sums zero
  uint32_t payload_crc = 0;
  Header header;
};
static_assert(sizeof(Frame) == 64);

}  // namespace hccl
