// NCCL's collectives. Some of them exist in NCCL since 2.28; on earlier versions they are groups of messages.
//
// The core computes the rest: sums in rank order; averages of integers; averages of floats if 1/n is not a power of
// two, because NCCL multiplies before it sums and rounds differently than the ABI requires; minima and maxima of
// floats, because NCCL's fminf drops a NaN; and collectives with a count per member. The core has no collectives for a
// program's queue, so averages of floats, minima and maxima are NCCL's there.
#include <prun/sdk/reduce.h>

#include <array>
#include <bit>
#include <cstring>

#include "context.h"

namespace prun::nccl {
namespace {

// indexed by prun_dtype
constexpr std::array<ncclDataType_t, 8> kTypes = {ncclFloat64, ncclFloat32, ncclBfloat16, ncclFloat16,
                                                  ncclInt64,   ncclInt32,   ncclInt8,     ncclUint8};
static_assert(PRUN_F64 == 0 && PRUN_BF16 == 2 && PRUN_U8 == 7);
// indexed by prun_redop
constexpr std::array<ncclRedOp_t, 5> kOps = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};
static_assert(PRUN_SUM == 0 && PRUN_MIN == 2 && PRUN_AVG == 4);

struct Call {
  int kind, root, me, size;
  size_t count;
  int dtype;
  ncclRedOp_t op;
  const char* send;
  char* recv;
  ncclComm_t comm;
  cudaStream_t stream;

  size_t piece() const { return count * sdk::dtype_bytes(dtype); }
  ncclDataType_t type() const { return kTypes[dtype]; }
};

bool reduces(int kind) { return kind == PRUN_ALL_REDUCE || kind == PRUN_REDUCE_SCATTER || kind == PRUN_REDUCE; }

bool native(const prun_coll_params& params, int size, bool on_queue) {
  if (params.kind < 0 || params.kind > PRUN_BARRIER || params.dtype < 0 || params.dtype > PRUN_U8) return false;
  if (!reduces(params.kind)) return true;
  const bool floating = sdk::is_float(params.dtype);
  const bool picks = params.redop == PRUN_MIN || params.redop == PRUN_MAX;
  const bool exact = std::has_single_bit(static_cast<unsigned>(size));
  if (params.redop == PRUN_AVG && (!floating || !(exact || on_queue))) return false;
  if (picks && floating && !on_queue) return false;
  return params.rank_order == 0 || picks || !floating;
}

// Performs a gather, a scatter or an all-to-all by messages: the root, or every member, exchanges a piece with each
// member.
ncclResult_t in_messages(const Nccl& nccl, const Call& c) {
  const size_t piece = c.piece();
  nccl.group_start();
  ncclResult_t first = ncclSuccess;
  auto note = [&](ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress && first == ncclSuccess) first = result;
  };
  auto send = [&](size_t at, int to) { note(nccl.send(c.send + at * piece, piece, ncclUint8, to, c.comm, c.stream)); };
  auto recv = [&](size_t at, int from) {
    note(nccl.recv(c.recv + at * piece, piece, ncclUint8, from, c.comm, c.stream));
  };
  const bool root = c.me == c.root;
  if (c.kind == PRUN_GATHER) send(0, c.root);
  if (c.kind == PRUN_SCATTER) recv(0, c.root);
  for (int peer = 0; peer < c.size; ++peer) {
    const size_t at = static_cast<size_t>(peer);
    if (c.kind == PRUN_ALL_TO_ALL || (c.kind == PRUN_SCATTER && root)) send(at, peer);
    if (c.kind == PRUN_ALL_TO_ALL || (c.kind == PRUN_GATHER && root)) recv(at, peer);
  }
  const ncclResult_t ended = nccl.group_end();
  return first != ncclSuccess ? first : ended;
}

ncclResult_t issue(const Nccl& nccl, const Call& c) {
  switch (c.kind) {
    case PRUN_ALL_REDUCE:
    case PRUN_BARRIER:
      return nccl.all_reduce(c.send, c.recv, c.count, c.type(), c.op, c.comm, c.stream);
    case PRUN_ALL_GATHER:
      return nccl.all_gather(c.send, c.recv, c.count, c.type(), c.comm, c.stream);
    case PRUN_REDUCE_SCATTER:
      return nccl.reduce_scatter(c.send, c.recv, c.count, c.type(), c.op, c.comm, c.stream);
    case PRUN_BROADCAST:
      return nccl.broadcast(c.send, c.recv, c.count, c.type(), c.root, c.comm, c.stream);
    case PRUN_REDUCE:
      return nccl.reduce(c.send, c.recv, c.count, c.type(), c.op, c.root, c.comm, c.stream);
    case PRUN_GATHER:
      if (nccl.gather != nullptr) return nccl.gather(c.send, c.recv, c.count, c.type(), c.root, c.comm, c.stream);
      break;
    case PRUN_SCATTER:
      if (nccl.scatter != nullptr) return nccl.scatter(c.send, c.recv, c.count, c.type(), c.root, c.comm, c.stream);
      break;
    default:
      if (nccl.all_to_all != nullptr) return nccl.all_to_all(c.send, c.recv, c.count, c.type(), c.comm, c.stream);
  }
  return in_messages(nccl, c);
}

const char* name_of(int kind) {
  constexpr std::array<const char*, 9> kNames = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter",
                                                 "ncclBroadcast", "ncclReduce",    "ncclGather",
                                                 "ncclScatter",   "ncclAlltoAll",  "ncclAllReduce (barrier)"};
  return kNames[kind];
}

struct Sizes {
  size_t send, recv;
};
Sizes sizes_of(const Call& c) {
  const size_t piece = c.piece(), all = piece * static_cast<size_t>(c.size);
  const bool root = c.me == c.root;
  switch (c.kind) {
    case PRUN_ALL_GATHER:
      return {piece, all};
    case PRUN_REDUCE_SCATTER:
      return {all, piece};
    case PRUN_BROADCAST:
      return {root ? piece : 0, piece};
    case PRUN_REDUCE:
      return {piece, root ? piece : 0};
    case PRUN_GATHER:
      return {piece, root ? all : 0};
    case PRUN_SCATTER:
      return {root ? all : 0, piece};
    case PRUN_ALL_TO_ALL:
      return {all, all};
    default:
      return {piece, piece};
  }
}

// Returns the peers with which a gather, a scatter or an all-to-all exchanges messages. NCCL has already connected the
// peers of other collectives.
std::vector<Link> links_of(const Call& c) {
  std::vector<Link> links;
  const bool root = c.me == c.root, all = c.kind == PRUN_ALL_TO_ALL;
  for (int peer = 0; peer < c.size; ++peer) {
    if (peer == c.me) continue;
    if (all || (c.kind == PRUN_GATHER && peer == c.root) || (c.kind == PRUN_SCATTER && root))
      links.emplace_back(peer, false);
    if (all || (c.kind == PRUN_SCATTER && peer == c.root) || (c.kind == PRUN_GATHER && root))
      links.emplace_back(peer, true);
  }
  return links;
}

// Replaces buffers that the device cannot reach by pinned ones.
void bounce(Context& context, Call& c, Request& request) {
  const Sizes sizes = sizes_of(c);
  if (sizes.send > 0 && !context.memory.reachable(c.send)) {
    void* pinned = context.memory.take_bounce(sizes.send);
    std::memcpy(pinned, c.send, sizes.send);
    request.bounces.push_back({pinned, sizes.send, nullptr});
    c.send = static_cast<const char*>(pinned);
  }
  if (sizes.recv > 0 && !context.memory.reachable(c.recv)) {
    void* pinned = context.memory.take_bounce(sizes.recv);
    request.bounces.push_back({pinned, sizes.recv, c.recv});
    c.recv = static_cast<char*>(pinned);
  }
}

void tell_next(Context& context, Comm& comm, const prun_coll_params& params, Request& request) {
  request.call = {params.sequence, params.fingerprint, params.count};
  Note note;
  note.kind = Note::call;
  note.key = comm.key();
  note.sequence = params.sequence;
  note.fingerprint = params.fingerprint;
  note.count = params.count;
  context.control.send(comm.next(), note);
}

}  // namespace

std::unique_ptr<Request> start_collective(Context& context, Comm& comm, const prun_coll_params& params,
                                          prun_queue queue) {
  if (!native(params, comm.size(), queue.kind == PRUN_MEM_CUDA)) return nullptr;
  auto request = std::make_unique<Request>();
  request->collective = &comm;
  for (int rank : comm.ranks())
    if (rank != context.rank) request->peers.push_back(rank);

  Call c{params.kind,
         params.root,
         comm.index(),
         comm.size(),
         params.count,
         params.dtype,
         kOps[params.redop],
         static_cast<const char*>(params.send),
         static_cast<char*>(params.recv),
         comm.handle(),
         queue.kind == PRUN_MEM_CUDA ? static_cast<cudaStream_t>(queue.handle) : comm.stream()};
  if (params.kind == PRUN_BARRIER) {
    if (comm.scratch == nullptr) comm.scratch = context.memory.take_bounce(1);
    c.count = 1;
    c.dtype = PRUN_U8;
    c.op = ncclMax;
    c.send = c.recv = static_cast<char*>(comm.scratch);
  } else if (queue.kind == PRUN_MEM_HOST) {
    bounce(context, c, *request);
  }
  if (context.options.check && comm.size() > 1) tell_next(context, comm, params, *request);
  if (c.count > 0) {
    Request::Part& part = request->parts.emplace_back();
    part.comm = &comm;
    part.launch.call = name_of(params.kind);
    part.launch.links = links_of(c);
    part.launch.stream = c.stream;
    part.launch.issue = [nccl = &context.library->nccl(), c] { return issue(*nccl, c); };
    comm.push(&part.launch);
  }
  return request;
}

}  // namespace prun::nccl
