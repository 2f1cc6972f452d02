/* prun transport ABI, version 1: how a plugin moves bytes between ranks.
 *
 * Version 1 is final: nothing below moves or changes its meaning (tests/sdk/abi.h holds every place). prun_p2p and
 * prun_queue, which have no size, stay as they are; what comes later is appended, or an extension by name.
 *
 * Plain C. A plugin is a shared object that exports one symbol, prun_transport_v1. Every other struct starts with its
 * size and only ever grows at its end; each side uses the smaller of both sizes, and a pointer beyond it is absent.
 * No exception, C++ type or ownership crosses: what one side allocates, that side frees.
 *
 * Seven functions are mandatory (open .. close); the core builds groups, collectives, timeouts, tracing and the
 * naming of missing ranks on them. Everything after them is optional: leave it null.
 *
 * Life of a context, on every rank:
 *     open -> [mem_alloc ...] -> address -> connect until PRUN_OK -> batch/coll/test ... -> close
 * Memory that peers should reach directly is allocated between open and address.
 *
 * Threads: open, mem_alloc, address, connect and close are called by one thread. batch and test may be called from
 * several threads at once, each with requests of its own; coll and comm_* from several threads with different
 * comms. abort may be called by any thread at any time. No function blocks, except test, for at most 10 ms.
 */
#ifndef PRUN_TRANSPORT_H
#define PRUN_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PRUN_TRANSPORT_ABI 1 /* grows only when an old plugin cannot work any more */

typedef enum prun_status {
  PRUN_OK = 0,
  PRUN_AGAIN = 1,   /* not finished: call again */
  PRUN_ENOTSUP = 2, /* this plugin does not do that: the core does it itself */
  PRUN_EINVAL = 3,  /* the caller broke the contract above */
  PRUN_ENOMEM = 4,
  PRUN_EPEER = 5,     /* the peer `culprit` is gone or unreachable */
  PRUN_EMISMATCH = 6, /* the peer `culprit` sent another size, or called another collective */
  PRUN_EABORTED = 7,  /* abort was called */
  PRUN_ECORRUPT = 8,  /* what arrived is not what was sent */
  PRUN_ESYSTEM = 9    /* the operating system said no; the message says what */
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
#define PRUN_MAX_SIGNAL 255   /* signals are 1 .. 255; 0 is none */

/* What the core offers a plugin. Valid from open to close. */
typedef struct prun_host {
  size_t size;
  uint32_t abi;
  /* A line for the log of this rank; level 0 debug, 1 info, 2 warning. Any thread. */
  void (*log)(int level, const char* text);
  /* Nonzero once the job is ending: every loop that waits must test it and return PRUN_EABORTED. Any thread. */
  int (*aborted)(void);
  /* Cores of the measured cpuset divided among the local ranks: long spins only if it is at least 1.0. */
  double cores_per_rank;
} prun_host;

typedef struct prun_open_params {
  size_t size;
  int rank, ranks;             /* global */
  int local_rank, local_ranks; /* on this host, as the launcher sees it */
  const char* options;         /* "key=value,key=value" or "" ; unknown keys are PRUN_EINVAL */
  uint8_t job_secret[32];      /* the same on all ranks, for authenticating connections */
  char job_id[40];             /* names what is visible outside the process */
  const char* interface_name;  /* network interface to use, or null */
  /* Appended to version 1. */
  int mem_kind; /* prun_mem_kind of what the rank computes on */
  int device;   /* which of the host's devices of that kind; -1: not known */
} prun_open_params;

typedef struct prun_ctx prun_ctx; /* the plugin's own */
typedef struct prun_comm prun_comm;
typedef struct prun_req prun_req;

/* What went wrong. `culprit` is a global rank, -1 unknown. With PRUN_AGAIN from connect and test it may name a rank
 * that is waited for, so that the core's message at the deadline can. In the message a rank is written #N, as in
 * "rank #3 is gone" and "ranks #0, #2": the context may be a part of the job, and the core puts the job's number there.
 */
typedef struct prun_result {
  size_t size;
  int culprit;
  char message[240];
} prun_result;

/* One point-to-point message. Matching is FIFO per (peer, lane); messages of different lanes pass each other.
 * A receive whose `bytes` differ from the send's ends with PRUN_EMISMATCH and both sizes in the message. */
typedef struct prun_p2p {
  int is_recv;      /* 0 send, 1 receive */
  int peer;         /* global rank; itself is allowed */
  uint64_t tag;     /* lane in the low 16 bits; the rest is 0 in version 1 */
  void* ptr;        /* a send is not written to */
  size_t bytes;     /* 0 is allowed and still matches */
  int mem_kind;     /* prun_mem_kind; the core sends only kinds in `mem_kinds` */
  void* mem_handle; /* from mem_reg or mem_alloc, or null */
} prun_p2p;

/* A queue for transports that enqueue (NCCL): {HOST, null} for all others. */
typedef struct prun_queue {
  int kind;
  void* handle;
} prun_queue;

/* One collective.
 *
 * Sums and products of bf16 and f16 are computed in f32 and rounded once; avg is the sum times (1/n) in the type that
 * is summed in, for integers the (wrapping) 64-bit sum divided by n towards zero. Other integer sums wrap. A minimum or
 * maximum of floats is a NaN wherever a member has one; which NaN, and which of two zeros, is open. A plugin whose
 * library drops NaNs returns PRUN_ENOTSUP for it, except on a device's queue, for which the core has no collectives.
 *
 * Counts are elements. In place is allowed as in MPI and NCCL: send == recv (all_reduce, broadcast,
 * reduce), send == recv + rank*count (all_gather), recv == send + rank*count (reduce_scatter).
 * A collective completes on a rank only when no peer will read its input again. */
typedef struct prun_coll_params {
  size_t size;
  int kind, dtype, redop;
  int root; /* index in the group */
  const void* send;
  void* recv;
  uint64_t count;       /* all_reduce, broadcast, reduce: of the buffer; all_gather, gather: of `send`;
                           reduce_scatter, scatter: of `recv`; all_to_all: of one piece */
  int rank_order;       /* sums must be ((x0 + x1) + x2) + ..., so that every transport gives the same bits */
  uint64_t sequence;    /* of this comm, from 0 */
  uint64_t fingerprint; /* kind, dtype, redop, root and rank_order as the core packs them; with count it must be equal
                           on all ranks */
} prun_coll_params;

/* Of a member whose call differs, for PRUN_EMISMATCH: what it called. */
typedef struct prun_coll_seen {
  size_t size;
  uint64_t fingerprint, count, sequence;
} prun_coll_seen;

typedef struct prun_transport {
  size_t size;
  uint32_t abi;             /* PRUN_TRANSPORT_ABI that it was written for */
  uint64_t must_understand; /* bits of features without which the core cannot use it; version 1 knows none */
  const char* name;         /* "shm" */
  const char* version;      /* "1.0.0" */
  const char* summary;      /* one line for `prun plugins` */
  uint32_t mem_kinds;       /* bit (1 << prun_mem_kind) for each kind that batch takes */
  int local_only;           /* 1: reaches ranks of the same host only */
  int queue_ordered;        /* 1: batch and coll only enqueue on the queue; what is in front of them may hold them up */

  /* Mandatory. */
  prun_status (*open)(const prun_open_params* params, prun_ctx** ctx, prun_result* result);
  prun_status (*address)(prun_ctx* ctx, void* blob, size_t* bytes, prun_result* result); /* in: room, out: used */
  /* blobs[r], bytes[r] for every rank; PRUN_AGAIN until every peer is connected. */
  prun_status (*connect)(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result);
  prun_status (*batch)(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req,
                       prun_result* result);
  /* Progress. PRUN_OK or an error frees the request. */
  prun_status (*test)(prun_ctx* ctx, prun_req* req, prun_result* result);
  void (*abort)(
      prun_ctx* ctx); /* any thread, idempotent, returns within 100 ms; everything under way ends with PRUN_EABORTED */
  void (*close)(prun_ctx* ctx); /* after the last request has ended */

  /* Optional. */
  /* Reserved: no prun calls it yet. A descriptor that polls readable when test may make progress; -1 none. */
  int (*wait_fd)(prun_ctx* ctx);
  prun_status (*mem_alloc)(prun_ctx* ctx, size_t bytes, int mem_kind, void** ptr, void** handle, prun_result* result);
  prun_status (*mem_reg)(prun_ctx* ctx, void* ptr, size_t bytes, int mem_kind, void** handle, prun_result* result);
  void (*mem_free)(prun_ctx* ctx, void* ptr, void* handle);
  /* A group of global ranks; `lane` tells groups of the same ranks apart. Every member calls it, in any order. */
  prun_status (*comm_create)(prun_ctx* ctx, const int* ranks, int n, int lane, prun_comm** comm, prun_result* result);
  prun_status (*comm_test)(prun_ctx* ctx, prun_comm* comm, prun_result* result); /* PRUN_OK once usable */
  void (*comm_free)(prun_ctx* ctx, prun_comm* comm);
  prun_status (*coll)(prun_ctx* ctx, prun_comm* comm, const prun_coll_params* params, prun_queue queue, prun_req** req,
                      prun_result* result);
  /* After PRUN_EMISMATCH of a coll: what the culprit called. */
  prun_status (*coll_seen)(prun_ctx* ctx, prun_comm* comm, prun_coll_seen* seen);
  /* How good it is for these ranks, 0 (cannot) .. 100; `auto` takes the highest. */
  int (*score)(const prun_open_params* params, const int* ranks, int n);
  /* One-sided: put and get reach into the peer's window, which is the memory of its first mem_alloc; offsets count
   * bytes in it. Signals are counters: one for every pair of ranks, direction and number 1 .. PRUN_MAX_SIGNAL, 0 at
   * connect.
   *
   *   put: when its request ends, src may be written again. A `signal` that is not 0 is raised by one at the peer once
   *     the bytes are in its window.
   *   get: when its request ends, dst holds the bytes.
   *   signal: raises the signal once everything that this rank has put to that peer before is in its window.
   *   wait_signal: its request ends when the peer has raised that signal `count` times since connect; what was put with
   *     these signals can then be read.
   *
   * The peer's program need only make progress (test) while it waits for anything. */
  prun_status (*put)(prun_ctx* ctx, int peer, const void* src, void* src_handle, size_t dst_offset, size_t bytes,
                     uint64_t signal, prun_req** req, prun_result* result);
  /* Reserved: no prun calls it yet; `prun conform` tests it. */
  prun_status (*get)(prun_ctx* ctx, int peer, void* dst, void* dst_handle, size_t src_offset, size_t bytes,
                     prun_req** req, prun_result* result);
  prun_status (*signal)(prun_ctx* ctx, int peer, uint64_t signal, prun_req** req, prun_result* result);
  const void* (*ext)(const char* id); /* extensions by name; null for unknown ones */

  /* Appended to version 1. */
  prun_status (*wait_signal)(prun_ctx* ctx, int peer, uint64_t signal, uint64_t count, prun_req** req,
                             prun_result* result);
} prun_transport;

/* Extension "coll_path", for `prun bench --explain`: in a few words how the last collective of a communicator went,
 * such as "direct: read in the members' memory". The text stays the plugin's. */
typedef const char* (*prun_coll_path)(prun_ctx* ctx, prun_comm* comm);

/* Extension "check_options": whether open would take the names and values of these options; PRUN_EINVAL and why not.
 * Asked before a job starts, without a context, also of a plugin that the job does not use. */
typedef prun_status (*prun_check_options)(const char* options, prun_result* result);

/* The one exported symbol. Null: this plugin cannot work with that host (too old); it has logged why. */
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
