// A queue pair that does what a test says, and a lane over some of them.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "verbs/lane/lane_over_queue_pair.h"

namespace hccl::test {

namespace scripted {

inline constexpr size_t slot_bytes = 1024;
inline constexpr uint32_t message_bit = uint32_t{1} << 31;
inline constexpr uint32_t gathered = uint32_t{1} << 29, announced = uint32_t{2} << 29,
                          answered = uint32_t{3} << 29;

struct Advertisement {
  uint64_t magic, address, slot_bytes;
  uint32_t num_slots, rkey;
  uint64_t released, whole;
};

inline constexpr size_t stride = 1088;  // of slots: a header, a note and as many bytes, rounded up

inline uint32_t number_bits(uint64_t number) {
  return static_cast<uint32_t>(number & 0x1fff) << 16;
}

// Keeps what is posted. The test hands out completions, and plays the peer's writes.
class ScriptedQueuePair final : public QueuePairInterface {
 public:
  MemoryRegion register_memory(std::span<std::byte> memory, uint32_t access) override {
    auto key = static_cast<uint32_t>(regions.size() + 1);
    regions.push_back({reinterpret_cast<uint64_t>(memory.data()), memory.size(), key, key, access});
    return regions.back();
  }
  void post_send(const SendRequest& request) override {
    if (full) throw QueueFull("the test has no room");
    if (gone) throw InvalidVerb("the test has no device");
    sent.push_back(request);
  }
  void post_recv(const RecvRequest& request) override {
    ++num_recvs;
    if (!request.pieces.empty()) advertised_to = request.pieces[0].address;
  }
  size_t poll(std::span<Completion> out) override {
    size_t count = std::min(out.size(), completions.size());
    std::copy_n(completions.begin(), count, out.begin());
    completions.erase(completions.begin(), completions.begin() + static_cast<long>(count));
    return count;
  }
  const void* domain() const override { return this; }
  std::string reason() override { return "the test says so"; }
  std::string trouble() override { return its_trouble; }
  size_t max_inline() const override { return inline_bytes; }
  void close() override { closed = true; }
  // Returns the RECVs.
  void stop() override {
    for (; num_taken < num_recvs; ++num_taken) fail(Status::flushed, Opcode::recv);
  }
  std::vector<int> descriptors() override { return {}; }
  bool prepare_sleep(Sleep&) override { return false; }

  void complete(Opcode opcode, size_t length, uint32_t imm = 0, uint64_t wr_id = 0) {
    Completion completion;
    completion.opcode = opcode;
    completion.byte_len = static_cast<uint32_t>(length);
    completion.imm = imm;
    completion.wr_id = wr_id;
    completions.push_back(completion);
    num_taken += opcode >= Opcode::recv;
  }
  void advertise(const Advertisement& theirs) {
    std::memcpy(reinterpret_cast<void*>(advertised_to), &theirs, sizeof theirs);
    complete(Opcode::recv, sizeof theirs);
  }
  // The peer's message `number`, whose completion claims `length` bytes; `imm`: credits and form.
  void deliver(uint64_t number, const Header& header, size_t length, uint32_t imm = 0) {
    std::memcpy(slot(number), &header, sizeof header);
    complete(Opcode::recv_rdma_with_imm, length, message_bit | number_bits(number) | imm);
  }
  // Where the peer writes it.
  std::byte* slot(uint64_t number) const {
    return reinterpret_cast<std::byte*>(regions[0].address) + number % 8 * stride;
  }
  void fail(Status status, Opcode opcode = Opcode::send) {
    completions.emplace_back();
    completions.back().status = status;
    completions.back().opcode = opcode;
  }

  std::vector<MemoryRegion> regions;
  std::vector<SendRequest> sent;
  std::deque<Completion> completions;
  size_t num_recvs = 0;
  size_t num_taken = 0;  // of these, that completed
  uint64_t advertised_to = 0;
  bool full = false, gone = false, closed = false;
  size_t inline_bytes = 0;
  std::string its_trouble;
};

// One path for each element.
inline std::unique_ptr<LaneOverQueuePair> make_lane(std::vector<LaneSlots::Pairs> paths,
                                                    Statistics& statistics) {
  auto slots = std::make_unique<LaneSlots>(std::move(paths), slot_bytes);
  return std::make_unique<LaneOverQueuePair>(3, std::move(slots), statistics);
}

inline Header header_of(uint32_t length) { return {.length = length}; }

}  // namespace scripted

}  // namespace hccl::test
