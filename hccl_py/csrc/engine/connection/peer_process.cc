#include "engine/connection/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace hccl {

namespace {

// <linux/pidfd.h> of Linux 6.15; older headers and kernels lack it.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t cgroup = 0;
  uint32_t ids[11] = {};
  int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t info_of_exit = 1 << 3;
constexpr unsigned long get_info = _IOWR(0xff, 11, PidfdInfo);

// Of a process that its parent has reaped.
std::optional<int> status_of_reaped(const Descriptor& process_fd) {
  PidfdInfo info;
  info.mask = info_of_exit;
  if (ioctl(process_fd.get(), get_info, &info) != 0 || !(info.mask & info_of_exit)) {
    return std::nullopt;
  }
  return info.exit_code;
}

// Of a process that its parent has not reaped yet: field 52 of its stat, if readable.
std::optional<int> status_of_zombie(pid_t process) {
  // No ifstream, whose buffer throws if the process is reaped between open and read.
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string stat(4096, '\0');
  ssize_t length = ::read(file.get(), stat.data(), stat.size());
  stat.resize(length > 0 ? static_cast<size_t>(length) : 0);
  size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream rest(stat.substr(end_of_name + 1));
  std::string state, field;
  rest >> state;  // field 3
  for (int i = 4; i <= 52; ++i) rest >> field;
  if (!rest || (state != "Z" && state != "X")) return std::nullopt;
  return std::stoi(field);
}

bool has_ended(const Descriptor& process_fd) {
  pollfd entry{process_fd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

// Communicators share them: a process has few peers and may have many subcommunicators.
std::mutex mutex;
std::map<pid_t, std::weak_ptr<const Descriptor>> watched;

}  // namespace

pid_t process_behind(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return 0;
  return credentials.pid > 0 && credentials.pid != getpid() ? credentials.pid : 0;
}

std::shared_ptr<const Descriptor> open_process(pid_t process) {
  std::lock_guard lock(mutex);
  std::erase_if(watched, [](const auto& one) { return one.second.expired(); });
  std::shared_ptr<const Descriptor> known = watched[process].lock();
  if (known && !has_ended(*known)) return known;  // otherwise another process may have its number
  auto opened = std::make_shared<Descriptor>(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (opened->get() < 0) return nullptr;
  watched[process] = opened;
  return opened;
}

std::optional<ProcessEnd> end_of_process(pid_t process, const Descriptor& process_fd) {
  if (!has_ended(process_fd)) return std::nullopt;
  std::optional<int> status = status_of_zombie(process);
  if (!status) status = status_of_reaped(process_fd);
  ProcessEnd end;
  if (status && WIFSIGNALED(*status)) end.signal = WTERMSIG(*status);
  if (status && WIFEXITED(*status)) end.exit_code = WEXITSTATUS(*status);
  return end;
}

}  // namespace hccl
