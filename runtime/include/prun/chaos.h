/* An extension of prun/transport.h, "prun.chaos": faults on demand, for tests of how a job ends (`prun --chaos`). The
 * socket transport has it. */
#ifndef PRUN_CHAOS_H
#define PRUN_CHAOS_H

#include <prun/transport.h>

#define PRUN_CHAOS "prun.chaos"

typedef enum prun_fault { PRUN_FAULT_RESET = 1, PRUN_FAULT_FLIP = 2 } prun_fault;

typedef struct prun_chaos {
  size_t size;
  /* Resets the connection to `peer`, or turns over one bit, which `seed` chooses, of what is sent there next. 0: there
   * is no such connection. Any thread. */
  int (*disturb)(prun_ctx* ctx, int fault, int peer, uint64_t seed);
} prun_chaos;

#endif
