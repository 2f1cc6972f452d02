/* Extension "prun.layout" of prun/device.h: the layout that a device requests from the compiler for its GEMM operands.
 */
#ifndef PRUN_LAYOUT_H
#define PRUN_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/* Without the extension, tensors have the shapes of the model. */
#define PRUN_DEVICE_LAYOUT "prun.layout"
typedef struct prun_device_layout {
  size_t size;
  int64_t vocabulary_multiple; /* columns of logits are padded to a multiple of it; 0 and 1 = no padding */
} prun_device_layout;

#endif
