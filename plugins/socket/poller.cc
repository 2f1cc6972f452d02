// epoll, level-triggered: unread input is reported again, so the work per turn can be bounded.
#include "poller.h"

#include <prun/sdk/failure.h>

#include <algorithm>
#include <utility>

namespace prun::socket {

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw sdk::system_failure("epoll_create1");
}

void Poller::add(int fd, EventSource* source, uint32_t events) {
  epoll_event event{.events = events, .data = {.ptr = source}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw sdk::system_failure("epoll_ctl add");
}

void Poller::modify(int fd, EventSource* source, uint32_t events) {
  epoll_event event{.events = events, .data = {.ptr = source}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

bool Poller::wait(int milliseconds) {
  ready_ = std::max(0, ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), milliseconds));
  return ready_ > 0;
}

void Poller::dispatch() {
  const int ready = std::exchange(ready_, 0);
  for (int i = 0; i < ready; ++i) static_cast<EventSource*>(events_[i].data.ptr)->on_event(events_[i].events);
}

}  // namespace prun::socket
