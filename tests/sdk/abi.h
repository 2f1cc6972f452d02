/* Version 1 of the ABI as it was published: sizes and places of what plugins are compiled with. A struct may grow at
 * its end, and this file with it; no line here may change. Included by a C and by a C++ file, and by nothing before the
 * header. */
#include "prun/transport.h"

#ifdef __cplusplus
#define PRUN_FIXED static_assert
#else
#define PRUN_FIXED _Static_assert
#endif
#define PRUN_PLACE(type, member, place) PRUN_FIXED(offsetof(type, member) == (place), #type "." #member " has moved")
#define PRUN_SIZE(type, bytes) PRUN_FIXED(sizeof(type) == (bytes), #type " has another size")

#if UINTPTR_MAX == 0xffffffffffffffffu /* of 64-bit machines; prun has run on no other */
PRUN_PLACE(prun_host, log, 16);
PRUN_PLACE(prun_host, aborted, 24);
PRUN_PLACE(prun_host, cores_per_rank, 32);

PRUN_PLACE(prun_open_params, rank, 8);
PRUN_PLACE(prun_open_params, local_ranks, 20);
PRUN_PLACE(prun_open_params, options, 24);
PRUN_PLACE(prun_open_params, job_secret, 32);
PRUN_PLACE(prun_open_params, job_id, 64);
PRUN_PLACE(prun_open_params, interface_name, 104);
PRUN_PLACE(prun_open_params, mem_kind, 112);
PRUN_PLACE(prun_open_params, device, 116);
PRUN_PLACE(prun_open_params, interface_address, 120);

PRUN_PLACE(prun_result, message, 12);
PRUN_SIZE(prun_result, 256);

/* These two come in arrays and by value: they can never grow. */
PRUN_PLACE(prun_p2p, peer, 4);
PRUN_PLACE(prun_p2p, tag, 8);
PRUN_PLACE(prun_p2p, ptr, 16);
PRUN_PLACE(prun_p2p, bytes, 24);
PRUN_PLACE(prun_p2p, mem_kind, 32);
PRUN_PLACE(prun_p2p, mem_handle, 40);
PRUN_SIZE(prun_p2p, 48);
PRUN_SIZE(prun_queue, 16);

PRUN_PLACE(prun_coll_params, kind, 8);
PRUN_PLACE(prun_coll_params, root, 20);
PRUN_PLACE(prun_coll_params, send, 24);
PRUN_PLACE(prun_coll_params, count, 40);
PRUN_PLACE(prun_coll_params, rank_order, 48);
PRUN_PLACE(prun_coll_params, sequence, 56);
PRUN_PLACE(prun_coll_params, fingerprint, 64);
PRUN_PLACE(prun_coll_seen, sequence, 24);

PRUN_PLACE(prun_transport, abi, 8);
PRUN_PLACE(prun_transport, must_understand, 16);
PRUN_PLACE(prun_transport, name, 24);
PRUN_PLACE(prun_transport, mem_kinds, 48);
PRUN_PLACE(prun_transport, queue_ordered, 56);
PRUN_PLACE(prun_transport, open, 64);
PRUN_PLACE(prun_transport, close, 112);
PRUN_PLACE(prun_transport, wait_fd, 120);
PRUN_PLACE(prun_transport, mem_alloc, 128);
PRUN_PLACE(prun_transport, comm_create, 152);
PRUN_PLACE(prun_transport, coll, 176);
PRUN_PLACE(prun_transport, coll_seen, 184);
PRUN_PLACE(prun_transport, score, 192);
PRUN_PLACE(prun_transport, put, 200);
PRUN_PLACE(prun_transport, ext, 224);
PRUN_PLACE(prun_transport, wait_signal, 232);
PRUN_SIZE(prun_transport, 240);
#endif

PRUN_FIXED(PRUN_TRANSPORT_ABI == 1 && PRUN_AGAIN == 1 && PRUN_ENOTSUP == 2 && PRUN_EPEER == 5 && PRUN_EMISMATCH == 6 &&
               PRUN_EABORTED == 7 && PRUN_ESYSTEM == 9,
           "a status has another number");
PRUN_FIXED(PRUN_F64 == 0 && PRUN_U8 == 7 && PRUN_SUM == 0 && PRUN_AVG == 4 && PRUN_ALL_REDUCE == 0 && PRUN_BARRIER == 8,
           "a type, an operation or a collective has another number");
