/* prun transport ABI, version 1: how a plugin moves bytes between ranks.
 *
 * Version 1 is final: no member moves or changes its meaning (tests/sdk/abi.h fixes every offset). prun_p2p and
 * prun_queue, which carry no size, never change; additions are appended to the other structs or are extensions by name.
 *
 * Plain C. A plugin is a shared object that exports one symbol, prun_transport_v1. Every struct that starts with its
 * size only ever grows at its end; each side uses the smaller of both sizes, and a pointer beyond it counts as null.
 * No exception, C++ type or ownership crosses the boundary: each side frees its own allocations.
 *
 * Seven functions are mandatory (open .. close). The core builds groups, collectives, timeouts, tracing and the names
 * of missing ranks on them. All later functions are optional: leave them null.
 *
 * Life of a context, on every rank:
 *     open -> [mem_alloc ...] -> address -> connect until PRUN_OK -> batch/coll/test ... -> close
 * Memory that peers should access directly is allocated between open and address.
 *
 * Threads:
 *   - open, mem_alloc, mem_reg, mem_free, address, connect and close are called by one thread.
 *   - batch, put, get, signal, wait_signal and test may run on several threads at once, each with its own requests.
 *   - coll, coll_seen and comm_* may run on several threads at once, each with its own comms.
 *   - abort may be called by any thread at any time.
 * test may block for at most 10 ms; no other function blocks.
 */
#ifndef PRUN_TRANSPORT_H
#define PRUN_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRUN_TRANSPORT_ABI 1 /* grows only when an old plugin can no longer work */

typedef enum prun_status {
  PRUN_OK = 0,
  PRUN_AGAIN = 1,   /* not finished: call again */
  PRUN_ENOTSUP = 2, /* not implemented by this plugin: the core falls back to its own code */
  PRUN_EINVAL = 3,  /* the caller broke the contract of this header */
  PRUN_ENOMEM = 4,
  PRUN_EPEER = 5,     /* the peer `culprit` is gone or unreachable */
  PRUN_EMISMATCH = 6, /* the peer `culprit` sent another size, or called another collective */
  PRUN_EABORTED = 7,  /* abort was called */
  PRUN_ECORRUPT = 8,  /* received data differ from the data sent */
  PRUN_ESYSTEM = 9    /* the operating system returned an error, which the message names */
} prun_status;

typedef enum prun_mem_kind { PRUN_MEM_HOST = 0, PRUN_MEM_CUDA = 1 } prun_mem_kind;

typedef enum prun_dtype { PRUN_F64, PRUN_F32, PRUN_BF16, PRUN_F16, PRUN_I64, PRUN_I32, PRUN_I8, PRUN_U8 } prun_dtype;
typedef enum prun_redop { PRUN_SUM, PRUN_PROD, PRUN_MIN, PRUN_MAX, PRUN_AVG } prun_redop;

typedef enum prun_coll_kind {
  PRUN_ALL_REDUCE,
  PRUN_ALL_GATHER,
  PRUN_REDUCE_SCATTER,
  PRUN_BROADCAST,
  PRUN_REDUCE,
  PRUN_GATHER,
  PRUN_SCATTER,
  PRUN_ALL_TO_ALL,
  PRUN_BARRIER
} prun_coll_kind;

#define PRUN_MAX_ADDRESS 4096 /* bytes of an address blob */
#define PRUN_MAX_LANE 65535   /* lanes are 0 .. 65535 */
#define PRUN_MAX_SIGNAL 255   /* signals are 1 .. 255; 0 = none */

/* Services of the core for a plugin. Valid from prun_transport_v1 until the process ends, so that functions without a
 * context, score and "check_options", may use them, too. */
typedef struct prun_host {
  size_t size;
  uint32_t abi;
  /* Writes a line to this rank's log; level 0 debug, 1 info, 2 warning. Any thread. */
  void (*log)(int level, const char* text);
  /* Returns nonzero once the job is ending: every wait loop must test it and return PRUN_EABORTED. Any thread. */
  int (*aborted)(void);
  /* Cores of the measured cpuset divided by the local ranks; spin for long only if it is at least 1.0. */
  double cores_per_rank;
} prun_host;

typedef struct prun_open_params {
  size_t size;
  int rank, ranks;             /* global */
  int local_rank, local_ranks; /* on this host, as the launcher counts them */
  const char* options;         /* "key=value,key=value" or ""; an unknown key is PRUN_EINVAL */
  uint8_t job_secret[32];      /* equal on all ranks; authenticates connections */
  char job_id[40];             /* goes into every name that is visible outside the process */
  const char* interface_name;  /* network interface to use, or null */
  /* Appended to version 1. */
  int mem_kind;                  /* prun_mem_kind of the memory that the rank computes on */
  int device;                    /* index among the host's devices of that kind; -1 = unknown */
  const char* interface_address; /* the interface's IP address at which other hosts reach this one, or null = any */
} prun_open_params;

typedef struct prun_ctx prun_ctx; /* defined by the plugin, as are the next two */
typedef struct prun_comm prun_comm;
typedef struct prun_req prun_req;

/* Details of a failure, written by the plugin into the caller's struct. `culprit` is a global rank; -1 = unknown. With
 * PRUN_AGAIN from connect and test it may name the awaited rank, which the core's message at the deadline then names.
 * The message writes a rank as #N ("rank #3 is gone", "ranks #0, #2"): the context may connect only part of the job,
 * and the core replaces N by the rank's number in the job. */
typedef struct prun_result {
  size_t size;
  int culprit;
  char message[240];
} prun_result;

/* One point-to-point message. Matching is FIFO per (peer, lane); messages of different lanes may overtake each other.
 * A receive whose `bytes` differ from the send's ends with PRUN_EMISMATCH; its message states both sizes. */
typedef struct prun_p2p {
  int is_recv;      /* 0 = send, 1 = receive */
  int peer;         /* global rank; the rank itself is allowed */
  uint64_t tag;     /* lane in the low 16 bits; the other bits are 0 in version 1 */
  void* ptr;        /* the caller's, until the request ends; read only for a send */
  size_t bytes;     /* 0 is allowed and is matched, too */
  int mem_kind;     /* prun_mem_kind; one of the kinds in `mem_kinds` */
  void* mem_handle; /* from mem_reg or mem_alloc, or null */
} prun_p2p;

/* A device queue for transports that enqueue (NCCL); {PRUN_MEM_HOST, null} for all others. */
typedef struct prun_queue {
  int kind;
  void* handle;
} prun_queue;

/* One collective.
 *
 * Arithmetic: sums and products of bf16 and f16 accumulate in f32 and are rounded once. PRUN_AVG of floats is the sum
 * times 1/n, in the accumulation type; of integers, the wrapping 64-bit sum divided by n towards zero. Other integer
 * sums wrap. A float minimum or maximum is NaN wherever an input is NaN; the choice among NaNs, and between -0 and +0,
 * is unspecified. A plugin whose library drops NaNs returns PRUN_ENOTSUP, except on a device's queue, for which the
 * core has no collectives.
 *
 * In place is allowed as in MPI and NCCL:
 *   - all_reduce, broadcast, reduce: send == recv
 *   - all_gather:                    send == recv + rank*count
 *   - reduce_scatter:                recv == send + rank*count
 *
 * A collective completes on a rank only after all peers have read that rank's input. */
typedef struct prun_coll_params {
  size_t size;
  int kind, dtype, redop; /* prun_coll_kind, prun_dtype, prun_redop */
  int root;               /* index in the group */
  const void* send;
  void* recv;
  uint64_t count;       /* elements. all_reduce, broadcast, reduce: of the buffer; all_gather, gather: of `send`;
                           reduce_scatter, scatter: of `recv`; all_to_all: of one piece */
  int rank_order;       /* 1 = sums are ((x0 + x1) + x2) + ..., bitwise identical over all transports */
  uint64_t sequence;    /* number of the call on this comm, from 0 */
  uint64_t fingerprint; /* kind, dtype, redop, root and rank_order, packed by the core; this and count must be equal
                           on all ranks, otherwise PRUN_EMISMATCH */
} prun_coll_params;

/* The call of a member that differs from this rank's, after PRUN_EMISMATCH. */
typedef struct prun_coll_seen {
  size_t size;
  uint64_t fingerprint, count, sequence;
} prun_coll_seen;

typedef struct prun_transport {
  size_t size;
  uint32_t abi;             /* PRUN_TRANSPORT_ABI that the plugin was written for */
  uint64_t must_understand; /* bits of features that the core must implement to use it; version 1 has none */
  const char* name;         /* "shm" */
  const char* version;      /* "1.0.0" */
  const char* summary;      /* one line for `prun plugins` */
  uint32_t mem_kinds;       /* bit (1 << prun_mem_kind) for each kind of memory that batch accepts */
  int local_only;           /* 1 = connects ranks of one host only */
  int queue_ordered;        /* 1 = batch and coll only enqueue; earlier work of the queue may delay them */

  /* Mandatory. `result` arrives as {its size, -1, ""}; a function may describe any status but PRUN_OK in it. */

  /* Creates a context, which close frees. *ctx is set with PRUN_OK only. PRUN_EINVAL: wrong options; PRUN_ENOTSUP: a
   * device or library is missing. */
  prun_status (*open)(const prun_open_params* params, prun_ctx** ctx, prun_result* result);
  /* Writes the blob that peers need to reach this rank. *bytes: in, the capacity of `blob`; out, the bytes written. */
  prun_status (*address)(prun_ctx* ctx, void* blob, size_t* bytes, prun_result* result);
  /* Connects to all peers; blobs[r] has bytes[r] bytes. PRUN_AGAIN until every peer is connected. */
  prun_status (*connect)(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result);
  /* Starts n messages. `ops` is the caller's and may change after the return. *req is set with PRUN_OK only; it ends
   * when all messages have ended. */
  prun_status (*batch)(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req,
                       prun_result* result);
  /* Makes progress. Any status except PRUN_AGAIN ends and frees the request. */
  prun_status (*test)(prun_ctx* ctx, prun_req* req, prun_result* result);
  /* Ends all requests with PRUN_EABORTED. Idempotent; returns within 100 ms. */
  void (*abort)(prun_ctx* ctx);
  void (*close)(prun_ctx* ctx); /* frees the context; every request has ended */

  /* Optional. */

  /* Reserved, never called by the core. Returns a descriptor, readable when test may make progress; -1 = none. */
  int (*wait_fd)(prun_ctx* ctx);
  /* Allocates memory aligned to 64 bytes; host memory is zeroed. PRUN_ENOTSUP: none of this kind. */
  prun_status (*mem_alloc)(prun_ctx* ctx, size_t bytes, int mem_kind, void** ptr, void** handle, prun_result* result);
  /* Registers memory of the caller, which outlives the context. PRUN_ENOTSUP: not needed. */
  prun_status (*mem_reg)(prun_ctx* ctx, void* ptr, size_t bytes, int mem_kind, void** handle, prun_result* result);
  void (*mem_free)(prun_ctx* ctx, void* ptr, void* handle); /* frees mem_alloc's memory, deregisters mem_reg's */
  /* Creates a communicator of n global ranks; `lane` distinguishes communicators of the same ranks. Every member calls
   * it, in any order. */
  prun_status (*comm_create)(prun_ctx* ctx, const int* ranks, int n, int lane, prun_comm** comm, prun_result* result);
  prun_status (*comm_test)(prun_ctx* ctx, prun_comm* comm, prun_result* result); /* PRUN_OK once usable */
  void (*comm_free)(prun_ctx* ctx, prun_comm* comm);
  /* Starts a collective. PRUN_ENOTSUP: the core runs its own algorithm. *req as for batch. */
  prun_status (*coll)(prun_ctx* ctx, prun_comm* comm, const prun_coll_params* params, prun_queue queue, prun_req** req,
                      prun_result* result);
  /* Reports the culprit's call after a coll that ended with PRUN_EMISMATCH. */
  prun_status (*coll_seen)(prun_ctx* ctx, prun_comm* comm, prun_coll_seen* seen);
  /* Rates the transport for these ranks, 0 (cannot) .. 100, without a context. `--transport auto` takes the one whose
   * lowest score on any rank is the highest. */
  int (*score)(const prun_open_params* params, const int* ranks, int n);
  /* One-sided. A rank's window is the memory of its first mem_alloc; offsets are bytes in the peer's window. Signals
   * are counters, one per (pair of ranks, direction, number 1 .. PRUN_MAX_SIGNAL), and are 0 at connect.
   *
   *   - put: writes `bytes` of src into the peer's window. Its request ends when src may be reused. A nonzero `signal`
   *     is raised by one at the peer after the bytes have arrived.
   *   - get: reads from the peer's window. Its request ends when dst holds the bytes.
   *   - signal: raises the signal after all earlier puts of this rank to that peer have arrived.
   *   - wait_signal: its request ends when the peer has raised that signal `count` times since connect. The puts that
   *     these signals followed can then be read.
   *
   * The peer makes no matching call: it need only call test during any wait of its own. */
  prun_status (*put)(prun_ctx* ctx, int peer, const void* src, void* src_handle, size_t dst_offset, size_t bytes,
                     uint64_t signal, prun_req** req, prun_result* result);
  /* Reserved, never called by the core; `prun conform` tests it. */
  prun_status (*get)(prun_ctx* ctx, int peer, void* dst, void* dst_handle, size_t src_offset, size_t bytes,
                     prun_req** req, prun_result* result);
  prun_status (*signal)(prun_ctx* ctx, int peer, uint64_t signal, prun_req** req, prun_result* result);
  const void* (*ext)(const char* id); /* extensions by name; null for unknown ones */

  /* Appended to version 1. */
  prun_status (*wait_signal)(prun_ctx* ctx, int peer, uint64_t signal, uint64_t count, prun_req** req,
                             prun_result* result);
} prun_transport;

/* Extension "coll_path", for `prun bench --explain`: describes how the last collective of a communicator ran, for
 * example "direct: read in the members' memory". The plugin owns the text. */
typedef const char* (*prun_coll_path)(prun_ctx* ctx, prun_comm* comm);

/* Extension "check_options": returns PRUN_OK if open would accept these options, otherwise PRUN_EINVAL and the reason.
 * Called before a job starts, without a context, also for a plugin that the job does not use. */
typedef prun_status (*prun_check_options)(const char* options, prun_result* result);

/* The one exported symbol. Null: the plugin cannot work with this host (too old) and has logged why. */
typedef const prun_transport* (*prun_transport_entry)(const prun_host* host);
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const prun_transport*
prun_transport_v1(const prun_host* host);

#ifdef __cplusplus
}
#endif
#endif
