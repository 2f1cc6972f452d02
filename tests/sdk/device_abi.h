/* prun/device.h as plugins are compiled with it, as abi.h has transport.h. Version 1 is not final until it has run on a
 * GPU: what moves until then moves here, too, on purpose and seen by whoever reads the change. Included after abi.h. */
#include "prun/device.h"

#if UINTPTR_MAX == 0xffffffffffffffffu
/* Without sizes: they come in arrays, or lie in a device's memory, and can never grow. */
PRUN_PLACE(prun_step_values, seed, 8);
PRUN_PLACE(prun_step_values, learning_rate, 16);
PRUN_PLACE(prun_step_values, eval_batch, 24);
PRUN_PLACE(prun_step_values, update, 32);
PRUN_SIZE(prun_step_values, 40);

PRUN_PLACE(prun_tensor, dims, 8);
PRUN_PLACE(prun_tensor, rank, 16);
PRUN_PLACE(prun_tensor, dtype, 20);
PRUN_SIZE(prun_tensor, 24);

PRUN_PLACE(prun_attr, type, 8);
PRUN_PLACE(prun_attr, integer, 16);
PRUN_PLACE(prun_attr, number, 24);
PRUN_PLACE(prun_attr, text, 32);
PRUN_PLACE(prun_attr, integers, 40);
PRUN_PLACE(prun_attr, numbers, 48);
PRUN_PLACE(prun_attr, n, 56);
PRUN_SIZE(prun_attr, 64);
/* The others only grow at their end. */

PRUN_PLACE(prun_op, kind, 8);
PRUN_PLACE(prun_op, reads, 16);
PRUN_PLACE(prun_op, writes, 32);
PRUN_PLACE(prun_op, attrs, 48);
PRUN_PLACE(prun_op, workspace, 64);
PRUN_PLACE(prun_op, values, 80);
PRUN_PLACE(prun_op, rank, 88);
PRUN_PLACE(prun_op, threads, 92);
PRUN_PLACE(prun_op, share, 96);
PRUN_PLACE(prun_op, mesh, 104);
PRUN_PLACE(prun_op, options, 112);
PRUN_SIZE(prun_op, 120);

PRUN_PLACE(prun_device_probe, devices, 8);
PRUN_PLACE(prun_device_probe, driver, 12);
PRUN_PLACE(prun_device_probe, runtime, 76);
PRUN_PLACE(prun_device_probe, libraries, 140);
PRUN_PLACE(prun_device_probe, problem, 396);
PRUN_SIZE(prun_device_probe, 640);

PRUN_PLACE(prun_device_info, name, 8);
PRUN_PLACE(prun_device_info, architecture, 136);
PRUN_PLACE(prun_device_info, id, 168);
PRUN_PLACE(prun_device_info, total_bytes, 232);
PRUN_PLACE(prun_device_info, peak_flops_bf16, 248);
PRUN_SIZE(prun_device_info, 256);

PRUN_PLACE(prun_device_params, index, 8);
PRUN_PLACE(prun_device_params, options, 16);
PRUN_PLACE(prun_device_params, log, 24);
PRUN_SIZE(prun_device_params, 32);

PRUN_PLACE(prun_device, abi, 8);
PRUN_PLACE(prun_device, must_understand, 16);
PRUN_PLACE(prun_device, name, 24);
PRUN_PLACE(prun_device, mem_kind, 48);
PRUN_PLACE(prun_device, probe, 56);
PRUN_PLACE(prun_device, supports, 72);
PRUN_PLACE(prun_device, open, 88);
PRUN_PLACE(prun_device, alloc, 104);
PRUN_PLACE(prun_device, memory_info, 120);
PRUN_PLACE(prun_device, stream_create, 128);
PRUN_PLACE(prun_device, stream_wait, 160);
PRUN_PLACE(prun_device, event_create, 168);
PRUN_PLACE(prun_device, event_elapsed, 208);
PRUN_PLACE(prun_device, copy, 216);
PRUN_PLACE(prun_device, host_call, 232);
PRUN_PLACE(prun_device, kernel_create, 240);
PRUN_PLACE(prun_device, capture_begin, 264);
PRUN_PLACE(prun_device, pin, 296);
PRUN_PLACE(prun_device, ext, 312);
PRUN_SIZE(prun_device, 320);

PRUN_PLACE(prun_device_fusion, wants, 8);
PRUN_SIZE(prun_device_fusion, 16);
#endif

PRUN_FIXED(PRUN_DEVICE_ABI == 1 && PRUN_PLACE_DEVICE == 0 && PRUN_PLACE_PINNED == 1 && PRUN_ATTR_INTEGER == 0 &&
               PRUN_ATTR_NUMBERS == 4,
           "a place or the type of an attribute has another number");
