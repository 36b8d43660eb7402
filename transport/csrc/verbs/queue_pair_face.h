// What a lane needs of a connected queue pair, in software or of a device.
//
// QueuePair implements it over any lane. A libibverbs provider implements it with ibv_post_send,
// ibv_post_recv, ibv_poll_cq, ibv_reg_mr, and the descriptor of its completion channel.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "progress/sleep.h"
#include "verbs/memory_region.h"
#include "verbs/verbs.h"

namespace hccl {

class QueuePairFace {
 public:
  virtual ~QueuePairFace() = default;

  // Memory that the peer's requests and ours may name; until the queue pair is destroyed.
  virtual MemoryRegion register_memory(std::span<std::byte> memory, uint32_t access) = 0;
  // Never block. Throw QueueFull; in ERROR they succeed, and the request ends with FLUSHED.
  virtual void post_send(const SendRequest& request) = 0;
  virtual void post_recv(const RecvRequest& request) = 0;
  // Takes completions of sends and RECVs that are there, the RECVs in order; never blocks.
  virtual size_t poll(std::span<Completion> out) = 0;
  // Why it is in ERROR, for people.
  virtual std::string reason() = 0;

  // Descriptors that a sleeper has to watch.
  virtual std::vector<int> descriptors() = 0;
  // Before a sleep: each completion from here on makes a descriptor readable, as after
  // ibv_req_notify_cq. True: something came meanwhile, so do not sleep.
  virtual bool prepare_sleep(Sleep& sleep) = 0;
};

}  // namespace hccl
