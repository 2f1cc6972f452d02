// The table of functions that the core calls. No exception leaves it.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>

#include "caches.h"
#include "comm.h"
#include "connect.h"
#include "context.h"
#include "onesided.h"
#include "ring.h"

namespace prun::shm {
namespace {

const prun_host* host = nullptr;

template <class Body>
prun_status guarded(prun_result* result, Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(result, PRUN_ENOMEM, -1, "out of memory");
  } catch (const std::exception& e) {
    return fail(result, PRUN_ESYSTEM, -1, "%s", e.what());
  }
}

prun_status open_context(const prun_open_params* params, prun_ctx** made, prun_result* result) {
  return guarded(result, [&] {
    auto c = std::make_unique<prun_ctx>();
    c->host = host;
    c->rank = params->rank;
    c->ranks = params->ranks;
    c->local_rank = params->local_rank;
    c->local_ranks = params->local_ranks;
    c->job_id.assign(params->job_id, strnlen(params->job_id, sizeof params->job_id));
    std::copy_n(params->job_secret, c->secret.size(), c->secret.begin());
    if (const std::string word = parse_options(params->options, c->options); !word.empty())
      return fail(result, PRUN_EINVAL, -1, "option \"%s\": shm knows small=64..%zu, chunk=4096..%zu and huge=0|1",
                  word.c_str(), kSlotBytes, kMaxChunk);
    // Spinning pays only while nobody else wants the core; and where it does not, a barrier saved is worth a copy.
    const bool roomy = host->cores_per_rank >= 1.0;
    if (roomy) c->wait.spin_ns = 50'000;
    if (c->options.small == 0) c->options.small = roomy ? 256 : 8192;
    if (c->options.chunk == 0) c->options.chunk = roomy ? 128 << 10 : 256 << 10;
    // Ranks that take turns on a core share its caches: longer rings would only fill them.
    c->ring = std::max<size_t>(roomy ? kStageBytes : kStageBytes / 2, 4 * c->options.chunk);
    c->last_cache = cache_bytes(3);
    *made = c.release();
    return PRUN_OK;
  });
}

prun_status address(prun_ctx* c, void* blob, size_t* bytes, prun_result* result) {
  return guarded(result, [&] {
    if (!c->connector) c->connector = std::make_unique<Connector>(*c);
    c->addressed = true;
    return c->connector->address(blob, bytes, result);
  });
}

prun_status connect_peers(prun_ctx* c, const void* const* blobs, const size_t* bytes, prun_result* result) {
  return guarded(result, [&] {
    if (c->connected) return PRUN_OK;
    if (!c->connector) return fail(result, PRUN_EINVAL, -1, "connect before address");
    if (c->stopped()) return report_aborted(result);
    const prun_status status = c->connector->connect(blobs, bytes, result);
    if (status != PRUN_OK) return status;
    c->connector.reset();
    c->connected = true;
    return PRUN_OK;
  });
}

prun_status batch(prun_ctx* c, const prun_p2p* ops, size_t n, prun_queue, prun_req** request, prun_result* result) {
  return guarded(result, [&] {
    if (!c->connected) return fail(result, PRUN_EINVAL, -1, "batch before connect");
    if (c->stopped()) return report_aborted(result);
    return start_batch(*c, ops, n, request, result);
  });
}

prun_status test(prun_ctx* c, prun_req* request, prun_result* result) {
  return guarded(result, [&] {
    if (request->kind == prun_req::Kind::p2p) return test_batch(*c, static_cast<P2pRequest*>(request), result);
    if (request->kind == prun_req::Kind::signal) return test_signal(*c, static_cast<SignalRequest*>(request), result);
    return test_collective(*c, *static_cast<CollRequest*>(request)->comm, result);
  });
}

// Sleepers wake within their nap of 4 ms; the peers see the state.
void abort_context(prun_ctx* c) {
  c->abort_called.store(true, std::memory_order_seq_cst);
  if (!c->connected) return;
  c->self().header().state.store(static_cast<uint32_t>(RankState::aborted), std::memory_order_seq_cst);
  ring(c->self().header().bell);
}

void close_context(prun_ctx* c) {
  if (c->me < static_cast<int>(c->peers.size()) && c->self().segment.base && !c->abort_called)
    c->self().header().state.store(static_cast<uint32_t>(RankState::closed), std::memory_order_seq_cst);
  c->connector.reset();
  for (Peer& peer : c->peers) {
    if (peer.rank != c->rank)
      for (Mapping& m : peer.arenas) unmap(m);
    unmap(peer.segment);
    if (peer.socket >= 0) ::close(peer.socket);
  }
  for (Arena& a : c->arenas) unmap(a.mapping);
  delete c;
}

prun_status mem_alloc(prun_ctx* c, size_t bytes, int kind, void** ptr, void** handle, prun_result* result) {
  return guarded(result, [&] {
    if (kind != PRUN_MEM_HOST) return fail(result, PRUN_ENOTSUP, -1, "shm has host memory only");
    const int index = static_cast<int>(c->arenas.size());
    if (c->addressed || index >= kMaxArenas)
      return fail(result, PRUN_ENOTSUP, -1, "memory for peers is allocated before address, %d pieces at most",
                  kMaxArenas);
    Arena a;
    const size_t skew = arena_skew(c->rank, index);
    const size_t whole = (std::max<size_t>(bytes, 1) + skew + kPage - 1) / kPage * kPage;
    a.mapping = create_mapping("prun-shm-arena", whole, c->options.huge && whole >= (4 << 20));
    if (!a.mapping.base)
      return fail(result, errno == ENOMEM ? PRUN_ENOMEM : PRUN_ESYSTEM, -1, "%zu bytes of shared memory: %s", bytes,
                  strerror(errno));
    a.start = a.mapping.base + skew;
    a.bytes = bytes;
    a.shared = true;
    *ptr = a.start;
    if (handle) *handle = nullptr;
    c->arenas.push_back(a);
    return PRUN_OK;
  });
}

void mem_free(prun_ctx* c, void* ptr, void*) {
  const auto a = std::find_if(c->arenas.begin(), c->arenas.end(), [&](const Arena& x) { return x.start == ptr; });
  if (a == c->arenas.end()) return;
  unmap(a->mapping);
  a->start = nullptr;
  a->shared = false;
  if (!c->addressed) c->arenas.erase(a);  // later, peers know arenas by index: a freed one leaves a gap
}

prun_status comm_create(prun_ctx* c, const int* ranks, int n, int lane, prun_comm** comm, prun_result* result) {
  return guarded(result, [&] {
    if (!c->connected) return fail(result, PRUN_EINVAL, -1, "comm_create before connect");
    return create_comm(*c, ranks, n, lane, comm, result);
  });
}

prun_status comm_test(prun_ctx* c, prun_comm* comm, prun_result* result) {
  return guarded(result, [&] { return test_comm(*c, *comm, result); });
}

void comm_free(prun_ctx* c, prun_comm* comm) {
  guarded(nullptr, [&] {
    free_comm(*c, comm);
    return PRUN_OK;
  });
}

prun_status coll(prun_ctx* c, prun_comm* comm, const prun_coll_params* params, prun_queue, prun_req** request,
                 prun_result* result) {
  return guarded(result, [&] {
    if (c->stopped()) return report_aborted(result);
    return start_collective(*c, *comm, *params, request, result);
  });
}

prun_status coll_seen(prun_ctx*, prun_comm* comm, prun_coll_seen* seen) {
  const size_t size = std::min(seen->size, sizeof *seen);
  std::memcpy(seen, &comm->seen, size);
  seen->size = size;
  return PRUN_OK;
}

prun_status put_into(prun_ctx* c, int peer, const void* src, void*, size_t offset, size_t bytes, uint64_t signal,
                     prun_req** request, prun_result* result) {
  return guarded(result, [&] { return put(*c, peer, src, offset, bytes, signal, request, result); });
}

prun_status get_from(prun_ctx* c, int peer, void* dst, void*, size_t offset, size_t bytes, prun_req** request,
                     prun_result* result) {
  return guarded(result, [&] { return get(*c, peer, dst, offset, bytes, request, result); });
}

prun_status signal_peer(prun_ctx* c, int peer, uint64_t signal, prun_req** request, prun_result* result) {
  return guarded(result, [&] { return raise_signal(*c, peer, signal, request, result); });
}

prun_status await_signal(prun_ctx* c, int peer, uint64_t signal, uint64_t count, prun_req** request,
                         prun_result* result) {
  return guarded(result, [&] { return wait_signal(*c, peer, signal, count, request, result); });
}

int score(const prun_open_params* params, const int*, int n) { return n <= params->local_ranks ? 90 : 0; }

const char* coll_path(prun_ctx*, prun_comm* comm) { return comm->path; }

// "sums_in_rank_order" only asks whether it is so; they are, on every path (plugins/README.md).
const void* extension(const char* id) {
  const bool known = std::strcmp(id, "coll_path") == 0 || std::strcmp(id, "sums_in_rank_order") == 0;
  return known ? reinterpret_cast<const void*>(coll_path) : nullptr;
}

const prun_transport* table() {
  static const prun_transport t = [] {
    prun_transport x{};
    x.size = sizeof x;
    x.abi = PRUN_TRANSPORT_ABI;
    x.name = "shm";
    x.version = "1.0.0";
    x.summary = "shared memory between the ranks of one host";
    x.mem_kinds = 1u << PRUN_MEM_HOST;
    x.local_only = 1;
    x.open = open_context;
    x.address = address;
    x.connect = connect_peers;
    x.batch = batch;
    x.test = test;
    x.abort = abort_context;
    x.close = close_context;
    x.mem_alloc = mem_alloc;
    x.mem_free = mem_free;
    x.comm_create = comm_create;
    x.comm_test = comm_test;
    x.comm_free = comm_free;
    x.coll = coll;
    x.coll_seen = coll_seen;
    x.score = score;
    x.put = put_into;
    x.get = get_from;
    x.signal = signal_peer;
    x.ext = extension;
    x.wait_signal = await_signal;
    return x;
  }();
  return &t;
}

}  // namespace
}  // namespace prun::shm

const prun_transport* prun_transport_v1(const prun_host* host) {
  if (!host || host->abi < PRUN_TRANSPORT_ABI || host->size < sizeof(prun_host)) {
    if (host && host->log) host->log(2, "shm: needs a core with version 1 of the transport ABI");
    return nullptr;
  }
  prun::shm::host = host;
  return prun::shm::table();
}
