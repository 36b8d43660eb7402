// Why a communicator or one request cannot go on. The first failure is kept; nothing replaces it.
//
// What one rank notices is a proposal. The ranks' coordinator makes one verdict of all proposals, a
// settled failure, whose text is the whole message and the same on all ranks.
#pragma once

#include <cstdint>
#include <string>

namespace hccl {

enum class FailureKind : uint16_t {
  none = 0,
  peer_lost = 1,
  timed_out = 2,
  mismatch = 3,
  aborted = 4,
  internal = 5,
};

struct Failure {
  FailureKind kind = FailureKind::none;
  int rank = -1;      // the culprit, where one is known
  int reporter = -1;  // the rank that told us, if it was not seen here
  uint64_t expected = 0;  // mismatch: the fingerprints of the two calls, as `reporter` saw them
  uint64_t received = 0;
  uint64_t sequence = 0;  // of the collective that met it; 0: none, or none is known
  bool settled = false;
  std::string text;
};

}  // namespace hccl
