/* Extension "prun.chaos" of prun/transport.h: fault injection, for tests of how a job ends (`prun --chaos`). The socket
 * transport implements it. */
#ifndef PRUN_CHAOS_H
#define PRUN_CHAOS_H

#include <prun/transport.h>

#define PRUN_CHAOS "prun.chaos"

typedef enum prun_fault { PRUN_FAULT_RESET = 1, PRUN_FAULT_FLIP = 2 } prun_fault;

typedef struct prun_chaos {
  size_t size;
  /* Resets the connection to `peer`, or flips one bit, chosen by `seed`, of the next data sent there. Returns 0 if
   * there is no such connection. Any thread. */
  int (*disturb)(prun_ctx* ctx, int fault, int peer, uint64_t seed);
} prun_chaos;

#endif
