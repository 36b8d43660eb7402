// The window of a TCP lane: which payloads are the caller's again before they are acknowledged.
#include "lanes/send_window.h"

#include <vector>

#include "check.h"

namespace hccl::test {
namespace {

// Posts messages of one length.
struct Sender {
  static constexpr size_t slot_bytes = 131072;

  explicit Sender(size_t length) : payload(length) {}
  void post() {
    auto length = static_cast<uint32_t>(payload.size());
    window.keep(window.post({.length = length}, payload.data()));
  }

  BufferPool pool{slot_bytes};
  SendWindow window{slot_bytes, pool};
  std::vector<std::byte> payload;
};

// The receiver takes seven messages of 8 KiB before it acknowledges anything, and may have sent
// nothing back. A call that overwrites the source of each must not wait for that.
HCCL_TEST(small_messages_that_found_no_room_are_kept_once_there_is_some) {
  Sender sender(8192);
  SendWindow& window = sender.window;
  for (int i = 0; i < 23; ++i) sender.post();
  CHECK(window.completed() == 16);
  window.acknowledge(16);
  for (int i = 0; i < 7; ++i) window.detach();
  CHECK(window.completed() == window.posted());
  window.acknowledge(23);
  for (int i = 0; i < 16; ++i) sender.post();  // all room is there again
  CHECK(window.completed() == window.posted());
}

// What later messages keep takes no room from what the peer has taken and not acknowledged yet.
HCCL_TEST(what_the_peer_has_taken_comes_free_whatever_later_messages_keep) {
  Sender sender(16384);
  SendWindow& window = sender.window;
  for (int i = 0; i < 8; ++i) sender.post();
  sender.payload.resize(65536);
  sender.post();
  sender.payload.resize(15000);
  for (int i = 0; i < 4; ++i) sender.post();
  CHECK(window.completed() == 8);
  window.acknowledge(8);
  sender.payload.resize(16384);
  for (int i = 0; i < 8; ++i) sender.post();
  for (int i = 0; i < 5; ++i) window.detach();
  CHECK(window.completed() == window.posted());
}

HCCL_TEST(large_messages_are_detached_up_to_a_limit) {
  Sender sender(65536);
  SendWindow& window = sender.window;
  for (int i = 0; i < 6; ++i) sender.post();
  CHECK(window.completed() == 0);
  for (int i = 0; i < 6; ++i) window.detach();
  CHECK(window.completed() == SendWindow::max_detached);
}

}  // namespace
}  // namespace hccl::test
