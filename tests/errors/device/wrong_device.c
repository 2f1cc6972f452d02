/* Devices that cannot be used, one for each way: NEWER is written for an ABI of later, the other crashes when it is asked
 * what is there. Nothing else of them is ever called. */
#include <signal.h>

#include "prun/device.h"

static prun_status crash(prun_device_probe *probe) {
  (void)probe;
  raise(SIGSEGV);
  return PRUN_OK;
}

static void never(void) {}
#define NEVER(name) .name = (void *)never,

const prun_device *prun_device_v1(uint32_t abi) {
  static prun_device table = {
      .size = sizeof(prun_device),
#ifdef NEWER
      .abi = PRUN_DEVICE_ABI + 1,
#else
      .abi = PRUN_DEVICE_ABI,
#endif
      .name = "wrong",
      .version = "1",
      PRUN_DEVICE_MANDATORY(NEVER)
  };
  (void)abi;
  table.probe = crash;
  return &table;
}
