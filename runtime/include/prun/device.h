/* prun device ABI, version 1: how a plugin computes.
 *
 * Plain C, under the rules of prun/transport.h, whose statuses, results, types and memory kinds it uses. A plugin is a
 * shared object that exports one symbol, prun_device_v1. Every struct that starts with its size only ever grows at its
 * end; each side uses the smaller of both sizes, and a pointer beyond it counts as null. Each side frees its own
 * allocations.
 *
 * Version 1 is not final: until it has run on a GPU, functions may be added anywhere in the table.
 *
 * A device is a queue machine: work is enqueued on streams and runs there in order; events order streams relative to
 * each other. The core has sorted all ops of a program into an order that respects every edge; one thread enqueues
 * them.
 *
 * Life, in every rank:
 *     open -> alloc ... -> stream_create, event_create, kernel_create ... -> kernel_run, copy, event_* ... -> close
 *
 * Threads:
 *   - probe, describe, supports and workspace may be called by any thread, and before a fork: they start no thread and
 *     create no context that a child could not use. probe and describe are called in a child process of their own.
 *   - All other functions are called by one thread at a time. event_test, stream_test and memory_info may run
 *     concurrently with them, on other threads.
 * Only stream_wait and close block on the device's work.
 */
#ifndef PRUN_DEVICE_H
#define PRUN_DEVICE_H

#include "prun/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PRUN_DEVICE_ABI 1

/* Values that change from step to step. They are stored in device memory and written before each step in stream order;
 * kernels read them when they run, so that a captured step can be replayed. */
typedef struct prun_step_values {
  int64_t step; /* from 0 */
  uint64_t seed;
  double learning_rate;
  int64_t eval_batch; /* batch of the current evaluation, from 0 */
  int64_t update;     /* optimizer updates before this step: `step` less the steps that updated nothing */
} prun_step_values;

/* Contiguous, row-major. `ptr` is null in queries of sizes (supports, workspace). */
typedef struct prun_tensor {
  void* ptr;
  const int64_t* dims;
  int rank;
  int dtype; /* prun_dtype */
} prun_tensor;

typedef enum prun_attr_type {
  PRUN_ATTR_INTEGER,
  PRUN_ATTR_NUMBER,
  PRUN_ATTR_TEXT,
  PRUN_ATTR_INTEGERS,
  PRUN_ATTR_NUMBERS
} prun_attr_type;

typedef struct prun_attr {
  const char* name;
  int type; /* prun_attr_type: selects one of the following */
  int64_t integer;
  double number;
  const char* text;
  const int64_t* integers;
  const double* numbers;
  size_t n; /* number of integers or numbers */
} prun_attr;

/* One op of a program. runtime/ir/ops/README.md defines kinds, reads, writes and attributes. All pointers are valid
 * during the call only, except the tensors' memory, `workspace` and `values`. */
typedef struct prun_op {
  size_t size;
  const char* kind;
  const prun_tensor* reads;
  size_t n_reads;
  const prun_tensor* writes; /* without the workspace */
  size_t n_writes;
  const prun_attr* attrs;
  size_t n_attrs;
  void* workspace;        /* scratch, of the size that the function `workspace` returned; null in queries of sizes */
  size_t workspace_bytes; /* less than that if the program was compiled for another machine */
  const prun_step_values* values;
  int rank;    /* of this process in the job */
  int threads; /* cores that a kernel may use, for devices that compute on them */
  /* Returns the rank's shard along mesh axes: part *index of *of. `axes` is one name, several separated by commas (the
   * first varies slowest), or "" (0 of 1). */
  void (*share)(const void* mesh, const char* axes, int64_t* index, int64_t* of);
  const void* mesh;
  const char* options; /* prun_device_params.options of the device that the program is compiled for; null = "" */
} prun_op;

/* The state of the machine, whether or not a device can be opened; unknown texts are "". */
typedef struct prun_device_probe {
  size_t size;
  int devices;         /* number of devices that can be opened */
  char driver[64];     /* "580.65.06 (CUDA 13.0)" */
  char runtime[64];    /* "CUDA runtime 13.0" */
  char libraries[256]; /* "cuBLASLt 13.1.0, cuDNN 9.19.0" */
  char problem[240];   /* one line, the reason for 0 devices: "the driver is for CUDA 11.4, this prun needs 12.0" */
} prun_device_probe;

typedef struct prun_device_info {
  size_t size;
  char name[128];        /* "NVIDIA H200" */
  char architecture[32]; /* "sm_90" */
  char id[64];           /* identifies the physical device on its host: a UUID */
  uint64_t total_bytes, free_bytes;
  double peak_flops_bf16; /* FLOP/s of dense bf16 GEMMs, of the whole device; 0 = unknown */
} prun_device_info;

typedef struct prun_device_params {
  size_t size;
  int index;                                /* among the host's devices */
  const char* options;                      /* "key=value,key=value" or ""; an unknown key is PRUN_EINVAL */
  void (*log)(int level, const char* text); /* see prun_host.log */
} prun_device_params;

typedef enum prun_place { PRUN_PLACE_DEVICE = 0, PRUN_PLACE_PINNED = 1 } prun_place;

typedef struct prun_dev prun_dev; /* defined by the plugin, as are the next four */
typedef struct prun_stream prun_stream;
typedef struct prun_event prun_event;
typedef struct prun_kernel prun_kernel;
typedef struct prun_graph prun_graph;

typedef struct prun_device {
  size_t size;
  uint32_t abi;             /* PRUN_DEVICE_ABI that the plugin was written for */
  uint64_t must_understand; /* bits of features that the core must implement to use it; version 1 has none */
  const char* name;         /* "cuda" */
  const char* version;
  const char* summary; /* one line for `prun plugins` */
  int mem_kind;        /* prun_mem_kind of its memory */

  /* The machine. Each fills the caller's struct, up to its `size`. */
  prun_status (*probe)(prun_device_probe* probe);
  prun_status (*describe)(int index, prun_device_info* info, prun_result* result);

  /* The op table, which needs no device. supports: PRUN_OK, or PRUN_ENOTSUP and the reason. workspace: bytes of
   * scratch, a function of the op and its options alone, equal on all machines; PRUN_EINVAL: wrong options. */
  prun_status (*supports)(const prun_op* op, prun_result* result);
  prun_status (*workspace)(const prun_op* op, size_t* bytes, prun_result* result);

  /* open: PRUN_EINVAL: wrong options. close waits for the device's work, then frees everything that is left. */
  prun_status (*open)(const prun_device_params* params, prun_dev** dev, prun_result* result);
  void (*close)(prun_dev* dev);

  /* Memory, aligned to 256 bytes. `place` is a prun_place. PRUN_ENOMEM: out of memory. */
  prun_status (*alloc)(prun_dev* dev, size_t bytes, int place, void** ptr, prun_result* result);
  void (*free)(prun_dev* dev, void* ptr, int place);
  prun_status (*memory_info)(prun_dev* dev, uint64_t* free_bytes, uint64_t* total_bytes);

  /* Streams. priority: 0, or -1 for streams whose work should start first (communication). */
  prun_status (*stream_create)(prun_dev* dev, int priority, prun_stream** stream, prun_result* result);
  void (*stream_free)(prun_dev* dev, prun_stream* stream);
  prun_queue (*stream_queue)(prun_dev* dev, prun_stream* stream);                      /* for transports that enqueue */
  prun_status (*stream_test)(prun_dev* dev, prun_stream* stream, prun_result* result); /* PRUN_AGAIN: not idle */
  prun_status (*stream_wait)(prun_dev* dev, prun_stream* stream, prun_result* result); /* blocks until it is idle */

  /* Events. An event that was never recorded counts as reached. event_test: PRUN_AGAIN until it is reached.
   * event_elapsed: milliseconds between two timed events that have been reached. During a capture an event orders only
   * the streams of the captured graph, unless `external` is set: then every launch of the graph records it, visibly to
   * the host, which until then sees the previous record. */
  prun_status (*event_create)(prun_dev* dev, int timed, prun_event** event, prun_result* result);
  void (*event_free)(prun_dev* dev, prun_event* event);
  prun_status (*event_record)(prun_dev* dev, prun_event* event, prun_stream* stream, int external, prun_result* result);
  prun_status (*event_wait)(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result);
  prun_status (*event_test)(prun_dev* dev, prun_event* event, prun_result* result);
  prun_status (*event_elapsed)(prun_dev* dev, prun_event* from, prun_event* to, double* ms, prun_result* result);

  /* Between any two places. Host memory that is not from `alloc` may be copied before the call returns. */
  prun_status (*copy)(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes,
                      prun_result* result);
  prun_status (*zero)(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result);
  /* Calls `function` on a thread of the device when the stream reaches this point; a captured graph calls it at every
   * launch. The function must be short and must not call this device. */
  prun_status (*host_call)(prun_dev* dev, prun_stream* stream, void (*function)(void* data), void* data,
                           prun_result* result);

  /* Kernels. kernel_create resolves every pointer once; kernel_run enqueues and allocates nothing. PRUN_ENOTSUP: the op
   * has no kernel. */
  prun_status (*kernel_create)(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result);
  void (*kernel_free)(prun_dev* dev, prun_kernel* kernel);
  prun_status (*kernel_run)(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result);

  /* Optional. From begin to end, work enqueued on `stream`, and on streams that wait for its events, is recorded into a
   * graph instead of running. Before the end, `stream` must have waited for all these streams. */
  prun_status (*capture_begin)(prun_dev* dev, prun_stream* stream, prun_result* result);
  prun_status (*capture_end)(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result);
  prun_status (*graph_launch)(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result);
  void (*graph_free)(prun_dev* dev, prun_graph* graph);

  /* Optional. Makes host memory that another library allocated, such as a transport, as reachable as PRUN_PLACE_PINNED.
   */
  prun_status (*pin)(prun_dev* dev, void* ptr, size_t bytes, prun_result* result);
  void (*unpin)(prun_dev* dev, void* ptr);

  const void* (*ext)(const char* id); /* extensions by name; null for unknown ones */
} prun_device;

/* F(name) for each mandatory function. */
/* clang-format off */
#define PRUN_DEVICE_MANDATORY(F) \
  F(probe) F(describe) F(supports) F(workspace) F(open) F(close) F(alloc) F(free) F(memory_info) \
  F(stream_create) F(stream_free) F(stream_queue) F(stream_test) F(stream_wait) \
  F(event_create) F(event_free) F(event_record) F(event_wait) F(event_test) F(event_elapsed) \
  F(copy) F(zero) F(host_call) F(kernel_create) F(kernel_free) F(kernel_run)
/* clang-format on */

/* Extension "prun.fusion": returns nonzero if the compiler should make this kind of fused op (runtime/compile/fuse.cc)
 * for the device. Without the extension it makes none. */
#define PRUN_DEVICE_FUSION "prun.fusion"
typedef struct prun_device_fusion {
  size_t size;
  int (*wants)(const char* kind);
} prun_device_fusion;

/* The one exported symbol; `abi` is the core's PRUN_DEVICE_ABI. Null: the plugin cannot work with that core. */
typedef const prun_device* (*prun_device_entry)(uint32_t abi);
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const prun_device*
prun_device_v1(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
