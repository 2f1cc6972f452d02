/* An extension of prun/transport.h, "prun.alarm": for transports that enqueue. A step that was captured is replayed
 * without a call of the transport: there is no request that `test` could end with an error. So while a replayed step
 * keeps the core waiting, it asks each communicator a few times a second. The nccl transport has it. */
#ifndef PRUN_ALARM_H
#define PRUN_ALARM_H

#include <prun/transport.h>

#define PRUN_ALARM "prun.alarm"

typedef struct prun_alarm {
  size_t size;
  /* Of a communicator that is usable, beside any other call on it: PRUN_OK, or what `test` would say of its operations;
   * PRUN_AGAIN names a member that does not seem to come. Does not block. `waited_ms`: since the device ended
   * something; a plugin may tell other ranks of a long wait. */
  prun_status (*comm)(prun_ctx* ctx, prun_comm* comm, int waited_ms, prun_result* result);
} prun_alarm;

#endif
