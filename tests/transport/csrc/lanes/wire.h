// One rank whose only peer is the test itself, with its hands on the sockets.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cstring>

#include "ranks.h"

namespace hccl::test {

struct Wire {
  static constexpr int num_channels = 2;
  std::shared_ptr<ProgressThread> progress = std::make_shared<ProgressThread>();
  std::shared_ptr<Communicator> rank;  // 0 of 2
  std::vector<int> lanes;              // the test's ends; the last one is for send and recv
  int control;
  uint64_t num_sent[num_channels + 1] = {};  // messages, on each lane
  uint64_t num_said = 0;

  enum class Lanes { at_start, later };

  // `sockets` makes both ends of a connection.
  explicit Wire(Lanes when = Lanes::at_start, std::array<int, 2> (*sockets)() = unix_sockets) {
    CommunicatorOptions options;
    options.world_size = 2;
    options.num_channels = num_channels;
    options.local_ranks = {0};
    rank = Communicator::create(options, progress);
    TcpConnections its;
    its.names = {"wire"};
    for (int lane = 0; lane <= num_channels; ++lane) {
      if (when == Lanes::later) {
        lanes.push_back(-1);
        continue;
      }
      std::array<int, 2> ends = sockets();
      lanes.push_back(ends[0]);
      its.lanes.push_back({stream_on(ends[1])});
    }
    std::array<int, 2> ends = sockets();
    control = ends[0];
    its.controls = {stream_on(ends[1])};
    rank->add_tcp_peer(1, std::move(its));
  }

  ~Wire() {
    rank->close();
    progress->stop();
    close_lanes();
    ::close(control);
  }

  // Makes the connection of a lane, as the control thread does.
  template <typename Kind = SocketStream, typename... Rest>
  void connect(size_t lane = num_channels, Rest... rest) {
    std::array<int, 2> ends = unix_sockets();
    lanes[lane] = ends[0];
    auto stream = std::make_shared<Kind>(Descriptor(ends[1]), std::move(rest)...);
    rank->replace_connection({1, 1 + static_cast<int>(lane), 0}, std::move(stream));
  }

  void send(const Header& header, size_t payload_bytes, size_t lane = num_channels) {
    Frame head;
    head.serial = static_cast<uint32_t>(num_sent[lane]++);
    head.sequence = num_sent[lane];
    head.header = header;
    std::vector<std::byte> frame(sizeof head + payload_bytes);
    std::memcpy(frame.data(), &head, sizeof head);
    CHECK(::send(lanes[lane], frame.data(), frame.size(), 0) == static_cast<ssize_t>(frame.size()));
  }

  void say(ControlMessage message) {
    message.number = ++num_said;
    CHECK(::send(control, &message, sizeof message, 0) == sizeof message);
  }
  // Whether the rank has read all that was said.
  bool control_is_drained() {
    int unread = 0;
    CHECK(ioctl(control, SIOCOUTQ, &unread) == 0);
    return unread == 0;
  }

  void close_lanes() {
    for (int fd : lanes) ::close(fd);
    lanes.clear();
  }
};

}  // namespace hccl::test
