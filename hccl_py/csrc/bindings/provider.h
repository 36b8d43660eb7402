// Lanes written in Python: how a provider such as transport/providers/zmq/provider.py plugs into the engine.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "base/descriptor.h"
#include "lanes/lane.h"

namespace hccl {

class Communicator;

// A lane whose work is done by a Python object; `transport/providers/interface.py` says what that promises.
//
// The only lane that takes the GIL, and only when its descriptor says that there is something to
// ask: every other turn of the driver costs one poll.
class PythonLane final : public QueuedLane {
 public:
  // With the GIL held. Throws nanobind::python_error if the object is no lane.
  PythonLane(int peer, const nanobind::object& lane, size_t slot_bytes, Statistics& statistics);
  ~PythonLane() override;

  int fd() const { return fd_; }
  std::vector<int> descriptors() const override { return {fd_}; }
  const Header* peek() override;
  const std::byte* lend() override;
  bool receive(std::byte* destination) override;
  void release() override { has_message_ = false; }

 protected:
  bool push(const Header& header, const std::byte* payload, size_t& offset) override;

 private:
  bool has_changed() const;
  bool call_send(const Header& header, const std::byte* payload);
  bool call_receive();
  [[noreturn]] void fail(const nanobind::python_error& error);

  nanobind::object lane_, send_, receive_;
  const int fd_;
  // What the object answered last; its descriptor becomes readable when that has changed.
  bool full_ = false;  // send: no room
  bool drained_ = false;  // receive: nothing there
  // The message that is lent. It is kept until the next one is received, because to release it
  // takes the GIL; `view_` refers to no object where there is none.
  Py_buffer view_{};
  Header header_;
  bool has_message_ = false;
};

// Adds a peer all of whose lanes are Python objects. With the GIL held.
void add_python_lanes(Communicator& communicator, int peer,
                      const std::vector<nanobind::object>& lanes, int control_fd);

}  // namespace hccl
