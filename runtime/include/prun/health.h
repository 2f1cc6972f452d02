/* An extension of prun/device.h, "prun.health": what is worth knowing of a device beyond what it can do, for `prun
 * doctor` and for the launcher's count of memory. The cuda device has it. */
#ifndef PRUN_HEALTH_H
#define PRUN_HEALTH_H

#include "prun/device.h"

#define PRUN_HEALTH "prun.health"

typedef struct prun_health_report {
  size_t size;
  uint64_t context_bytes; /* of the device's memory, that a process takes by opening it; 0: not known */
  int exclusive;          /* 1: one process at a time may open it */
  char facts[400];        /* in a line: "ECC on; NVLink to GPUs 1 to 7"; "" where there is nothing to say */
  char advice[1000];      /* what is wrong or slow and what to do about it, a line each */
} prun_health_report;

typedef struct prun_health {
  size_t size;
  /* As `describe`, in a process of its own, and before it: it measures what opening the device takes. */
  prun_status (*examine)(int index, prun_health_report* report, prun_result* result);
} prun_health;

#endif
