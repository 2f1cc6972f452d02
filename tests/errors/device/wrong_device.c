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
#define NEVER (void *)never

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
      .probe = crash,
      .describe = NEVER,
      .supports = NEVER,
      .workspace = NEVER,
      .open = NEVER,
      .close = NEVER,
      .alloc = NEVER,
      .free = NEVER,
      .memory_info = NEVER,
      .stream_create = NEVER,
      .stream_free = NEVER,
      .stream_queue = NEVER,
      .stream_test = NEVER,
      .stream_wait = NEVER,
      .event_create = NEVER,
      .event_free = NEVER,
      .event_record = NEVER,
      .event_wait = NEVER,
      .event_test = NEVER,
      .event_elapsed = NEVER,
      .copy = NEVER,
      .zero = NEVER,
      .host_call = NEVER,
      .kernel_create = NEVER,
      .kernel_free = NEVER,
      .kernel_run = NEVER,
  };
  (void)abi;
  return &table;
}
