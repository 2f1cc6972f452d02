/* Extension "prun.progress" of prun/transport.h, for a caller that waits for several requests of a transport at once,
 * such as a plugin that carries some of its messages over another one. `test` sleeps for one request and would not
 * notice the others. The socket transport implements it. */
#ifndef PRUN_PROGRESS_H
#define PRUN_PROGRESS_H

#include <prun/transport.h>

#define PRUN_PROGRESS "prun.progress"

typedef struct prun_progress {
  size_t size;
  /* Makes progress on all requests; sleeps until data arrive, at most this long. */
  void (*progress)(prun_ctx* ctx, int milliseconds);
  int (*ended)(prun_ctx* ctx, prun_req* req); /* 1 = test will return at once and free the request */
} prun_progress;

#endif
