/* Extension "prun.alarm" of prun/transport.h, for transports that enqueue. Replaying a captured step makes no transport
 * call, so there is no request whose `test` could return an error. While the core waits for a replayed step, it
 * therefore polls each communicator a few times per second. The nccl transport implements it. */
#ifndef PRUN_ALARM_H
#define PRUN_ALARM_H

#include <prun/transport.h>

#define PRUN_ALARM "prun.alarm"

typedef struct prun_alarm {
  size_t size;
  /* Polls a usable communicator, concurrently with any other call on it; does not block. Returns PRUN_OK, the error
   * that `test` would return for its operations, or PRUN_AGAIN with a member that seems to be missing. `waited_ms`:
   * time since the device last completed any work; a plugin may inform other ranks of a long wait. */
  prun_status (*comm)(prun_ctx* ctx, prun_comm* comm, int waited_ms, prun_result* result);
} prun_alarm;

#endif
