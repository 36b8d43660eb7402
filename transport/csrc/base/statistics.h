// Counters of one communicator. The driving thread writes them, any thread reads them.
#pragma once

#include <atomic>
#include <cstdint>

namespace hccl {

// A counter, or a latest value. A single writer at a time: relaxed, because it
// orders nothing.
class Counter {
 public:
  void add(uint64_t amount) { set(value() + amount); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Bytes and messages that all lanes of a communicator, or one queue pair, sent over one transport.
struct DeviceStatistics {
  Counter messages;
  Counter bytes;    // their payload; in shared memory once per reader
  Counter stalls;   // messages that could not leave at once
  Counter retries;  // messages sent again: the peer had no RECV posted, or over another device
};

// Of lanes over queue pairs.
struct VerbsStatistics : DeviceStatistics {
  Counter copies;  // payloads that this side copied: into a slot to send them, or out of one
  Counter reads;   // payloads that it read out of the peer's memory
};

struct QueuePairStatistics : DeviceStatistics {
  Counter received_messages;
  Counter received_bytes;
  Counter timeouts;  // the peer was silent for `timeout`
};

// All calls of one kind.
struct CallStatistics {
  Counter calls;       // that ended without error
  Counter waiting_ns;  // for late ranks; of a transfer, for the peer
  Counter moving_ns;   // the rest of the time from start to end
  Counter elements;    // total of each collective, the same on all ranks; 0 for transfers

  void add(uint64_t its_waiting_ns, uint64_t its_moving_ns) {
    calls.add(1);
    waiting_ns.add(its_waiting_ns);
    moving_ns.add(its_moving_ns);
  }
};

// How this rank's working time in collectives is spent; the rest is waiting. Counted in compressed
// calls, and in all calls once requested, because the clock is read twice for each part.
struct Profile {
  Counter copy_ns;  // to and from shared memory, and within this rank's own
  Counter reduce_ns;
  Counter wire_ns;  // sending and receiving over anything else
};

// All compressed calls: their cost and savings on this rank's own edges between nodes.
struct CompressionStatistics {
  Counter calls;
  Counter raw_bytes;   // of the messages that this rank sent, before they were encoded
  Counter sent_bytes;  // after
  Counter coding_ns;   // encoding, and decoding received messages
};

// Kinds of calls: the four bits above the sequence number in a collective's fingerprint, then
// these.
inline constexpr int kind_of_send = 16;
inline constexpr int kind_of_recv = 17;
inline constexpr int num_call_kinds = 18;

struct Statistics {
  Counter collectives;    // finished without error
  Counter rendezvous;     // of these, with messages that were read or written in registered memory
  Counter announced;      // these messages, sent and received
  Counter single_copies;  // messages that the kernel copied once, between the memory of two ranks
  Counter sleeps;         // a driver went to sleep in the kernel
  Counter doorbells;      // a sleeping peer was woken
  CallStatistics calls[num_call_kinds];
  Profile profile;
  CompressionStatistics compression;
  DeviceStatistics shm;
  DeviceStatistics tcp;
  VerbsStatistics verbs;      // lanes over queue pairs
  DeviceStatistics provider;  // lanes of a provider in Python
};

}  // namespace hccl
