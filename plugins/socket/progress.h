// An extension of the socket transport ("prun.socket.progress"), for who waits for several requests at once, as a
// plugin does that uses it for its own messages: `test` sleeps for one request and would not notice the others.
#pragma once
#include <prun/transport.h>

inline constexpr const char* kSocketProgress = "prun.socket.progress";

struct prun_socket_progress {
  size_t size;
  void (*progress)(prun_ctx* ctx,
                   int milliseconds);          // for all requests; sleeps until something arrives, at most so long
  int (*ended)(prun_ctx* ctx, prun_req* req);  // 1: test returns at once, and frees it
};
