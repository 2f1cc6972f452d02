// Peers that are far away: what is on its way there is more than the kernel's buffers hold, and the way there and back
// takes longer than copying what came unasked.
#pragma once

namespace prun::socket {

// Of an established TCP connection: the least time there and back that the kernel has measured is 1 ms or more.
bool is_far(int fd);
// Gives it a send buffer that holds what a line of 1 Gbit/s has on its way in 60 ms, where the kernel's own tuning ends
// before that and the process may. epoll calls a socket writable when a third of its buffer is free: what is on its way
// must fit in the other two.
void widen_send_buffer(int fd);

}  // namespace prun::socket
