// The epoll set of a context: maps descriptors to event sources.
//
// wait and dispatch are separate because a thread waits without the context's lock and dispatches under it. Sources
// outlive the set, except handshakes, which exist only while a single thread is connecting.
#pragma once
#include <prun/sdk/descriptor.h>
#include <sys/epoll.h>

#include <array>
#include <cstdint>

namespace prun::socket {

using sdk::Descriptor;

class EventSource {
 public:
  virtual ~EventSource() = default;
  virtual void on_event(uint32_t events) = 0;
};

class Poller {
 public:
  Poller();  // throws Failure
  int fd() const { return epoll_.get(); }
  void add(int fd, EventSource* source, uint32_t events);
  void modify(int fd, EventSource* source, uint32_t events);
  void remove(int fd);
  // Waits at most `milliseconds`. Returns whether there are events to dispatch. One thread at a time.
  bool wait(int milliseconds);
  void dispatch();  // called after wait, by the same thread

 private:
  Descriptor epoll_;
  std::array<epoll_event, 64> events_;
  int ready_ = 0;
};

}  // namespace prun::socket
