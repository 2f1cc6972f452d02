/* Extension "prun.health" of prun/device.h: the state of a device, for `prun doctor` and for the launcher's memory
 * accounting. The cuda device implements it. */
#ifndef PRUN_HEALTH_H
#define PRUN_HEALTH_H

#include "prun/device.h"

#define PRUN_HEALTH "prun.health"

typedef struct prun_health_report {
  size_t size;
  uint64_t context_bytes; /* device memory that opening the device takes per process; 0 = unknown */
  int exclusive;          /* 1 = only one process at a time may open it */
  char facts[400];        /* one line: "ECC on; NVLink to GPUs 1 to 7"; "" = none */
  char advice[1000];      /* one line per problem or slowdown, with its fix */
} prun_health_report;

typedef struct prun_health {
  size_t size;
  /* Fills the report of device `index`. Called like `describe`, in a child process of its own and before `describe`,
   * because it measures the memory that opening the device takes. */
  prun_status (*examine)(int index, prun_health_report* report, prun_result* result);
} prun_health;

#endif
