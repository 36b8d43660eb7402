#include "loopback.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "communicator.h"

namespace hccl {

namespace {

std::array<int, 2> socket_pair() {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  return ends;
}

int duplicate(int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "dup");
  return copy;
}

}  // namespace

void connect_loopback(const std::vector<std::shared_ptr<Communicator>>& ranks,
                      const std::vector<int>& nodes, int num_lanes) {
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (size_t b = a + 1; b < ranks.size(); ++b) {
      std::array<int, 2> control = socket_pair();
      int rank_a = static_cast<int>(a), rank_b = static_cast<int>(b);
      if (nodes[a] == nodes[b]) {
        ranks[a]->add_shm_peer(rank_b, ranks[b]->segment(), duplicate(ranks[b]->doorbell_fd()),
                               control[0]);
        ranks[b]->add_shm_peer(rank_a, ranks[a]->segment(), duplicate(ranks[a]->doorbell_fd()),
                               control[1]);
        continue;
      }
      std::vector<int> lanes_a, lanes_b;
      for (int lane = 0; lane < num_lanes; ++lane) {
        std::array<int, 2> ends = socket_pair();
        lanes_a.push_back(ends[0]);
        lanes_b.push_back(ends[1]);
      }
      ranks[a]->add_tcp_peer(rank_b, lanes_a, control[0]);
      ranks[b]->add_tcp_peer(rank_a, lanes_b, control[1]);
    }
  }
}

}  // namespace hccl
