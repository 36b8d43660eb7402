// The one thread per process that drives what nobody waits for.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hccl {

class Communicator;

class ProgressThread {
 public:
  ProgressThread();
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Starts the thread if there is none yet. Throws std::system_error.
  void start();
  // `communicator` has requests that nobody drives.
  void kick(const std::shared_ptr<Communicator>& communicator);
  // Ends the thread; requests still under way stay where they are.
  void stop();

 private:
  using Communicators = std::vector<std::shared_ptr<Communicator>>;

  void loop();
  bool turn(const Communicators& communicators);
  void sleep();
  void list(const std::shared_ptr<Communicator>& communicator);

  const int wake_fd_;
  std::mutex mutex_;
  std::condition_variable kicked_;
  Communicators active_;  // guarded by mutex_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace hccl
