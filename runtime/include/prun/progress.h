/* An extension of prun/transport.h, "prun.progress": for who waits for several requests of a transport at once, as a
 * plugin does that carries some of its messages over another one. `test` sleeps for one request and would not notice
 * the others. The socket transport has it. */
#ifndef PRUN_PROGRESS_H
#define PRUN_PROGRESS_H

#include <prun/transport.h>

#define PRUN_PROGRESS "prun.progress"

typedef struct prun_progress {
  size_t size;
  void (*progress)(prun_ctx* ctx,
                   int milliseconds);         /* for all requests; sleeps until something arrives, at most so long */
  int (*ended)(prun_ctx* ctx, prun_req* req); /* 1: test returns at once, and frees it */
} prun_progress;

#endif
