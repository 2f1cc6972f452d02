// Entry points of NCCL that the plugin uses. Built three times: as 2.30, 2.28, and 2.18 with fewer functions.
//
//     PRUN_SUBSTITUTE_ABORT_HANGS=1   ncclCommAbort never returns
//     PRUN_SUBSTITUTE_INIT_HANGS=N    the Nth communicator of a process hangs in init until ncclCommAbort
//     PRUN_SUBSTITUTE_FAIL_AT=N       the Nth group on a stream fails asynchronously, on rank PRUN_SUBSTITUTE_FAIL_RANK
//     PRUN_SUBSTITUTE_FAIL_RUN=N      the Nth group that runs fails likewise, including those of replayed graphs
//     PRUN_SUBSTITUTE_COMM_MIB=N      device memory of a communicator's buffers; a parent has none
//     PRUN_SUBSTITUTE_NO_SHM=1        init fails because /dev/shm is full
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "comm.h"
#include "tests/substitutes/cuda/substitute.h"

#ifndef SUBSTITUTE_VERSION
#define SUBSTITUTE_VERSION NCCL_VERSION_CODE
#endif

namespace substitute {
namespace {

using Handle = std::shared_ptr<Comm>;

std::mutex last_error_lock;
std::string& last_error() {
  static auto* text = new std::string;
  return *text;
}
ncclResult_t error(ncclResult_t result, const char* text) {
  std::lock_guard lock(last_error_lock);
  last_error() = text;
  return result;
}

Handle& of(ncclComm_t comm) {
  Handle& handle = *reinterpret_cast<Handle*>(comm);
  if (comm == nullptr || handle->magic != kAlive) die("a communicator is used that was freed");
  return handle;
}
ncclComm_t made(Handle comm) { return reinterpret_cast<ncclComm_t>(new Handle(std::move(comm))); }

void moment() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

std::atomic<int> threads{0};  // started by calls

// Runs a call on a nonblocking communicator in its own thread, as NCCL does. The communicator's state reports its end.
template <class Body>
ncclResult_t in_background(const Handle& comm, Body body) {
  if (comm->blocking) {
    const ncclResult_t result = body();
    if (result != ncclSuccess) comm->state = result;
    return result;
  }
  comm->state = ncclInProgress;
  ++threads;
  std::thread([comm, body] { comm->state = body(); }).detach();
  return ncclInProgress;
}

struct Grouped {
  Handle comm;
  cudaStream_t stream;
  Operation operation;
};
std::atomic<int> registrations{0};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

// Hangs the operation; the communicator's state reports the error.
void fail_remotely(const Handle& comm) {
  comm->state = error(ncclRemoteError, "the link to a peer is down");
  comm->hang();
}

bool fails_now(const Comm& comm) {
  static std::atomic<int> runs{0};
  return ++runs == setting("FAIL_RUN", -1) && comm.rank == setting("FAIL_RANK", 0);
}

void put_on_stream(const Handle& comm, cudaStream_t stream, const std::vector<Operation>& operations) {
  static std::atomic<int> groups{0};
  const int number = ++groups;
  if (number == setting("FAIL_AT", -1) && comm->rank == setting("FAIL_RANK", 0)) {
    enqueue(stream, [comm] { fail_remotely(comm); });
    return;
  }
  if (!comm->reaches(operations)) {
    comm->state = error(ncclUnhandledCudaError, "an illegal memory access was encountered");
    enqueue(stream, [comm] { comm->hang(); });
    return;
  }
  ++comm->queued;
  // A graph runs it repeatedly; it counts as queued until its first run.
  auto counted = std::make_shared<std::atomic<bool>>(true);
  enqueue(stream, [comm, operations, counted] {
    if (fails_now(*comm))
      fail_remotely(comm);
    else
      comm->run(operations);
    if (counted->exchange(false)) --comm->queued;
  });
}

ncclResult_t launch(const std::vector<Grouped>& all) {
  if (all.empty()) return ncclSuccess;
  const Handle comm = all.front().comm;
  const cudaStream_t stream = all.front().stream;
  std::vector<Operation> operations;
  for (const Grouped& g : all) {
    if (g.comm != comm || g.stream != stream) die("a group of several communicators");
    operations.push_back(g.operation);
  }
  if (comm->state == ncclInProgress)
    return error(ncclInvalidArgument, "the previous call on this communicator is still in progress");
  if (comm->state != ncclSuccess) return comm->state;
  return in_background(comm, [comm, stream, operations] {
    if (!comm->connected.exchange(true)) moment();
    if (!comm->link(operations)) return error(ncclInternalError, "aborted while it connected two ranks");
    put_on_stream(comm, stream, operations);
    return comm->state == ncclInProgress ? ncclSuccess : comm->state.load();
  });
}

ncclResult_t add(ncclComm_t handle, cudaStream_t stream, const Operation& operation) {
  const Handle comm = of(handle);
  if (operation.root < 0 || operation.root >= comm->ranks) return error(ncclInvalidArgument, "there is no such rank");
  if (operation.count == 0) return ncclSuccess;
  if (depth > 0) return grouped.push_back({comm, stream, operation}), ncclSuccess;
  return launch({{comm, stream, operation}});
}

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// NCCL compares hosts and devices of its ranks once all have joined.
ncclResult_t check_devices(const Comm& comm) {
  const int other = comm.rank_on_the_same_device();
  if (other < 0) return ncclSuccess;
#if SUBSTITUTE_VERSION >= 23000
  const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (allowed != nullptr && std::atoi(allowed) != 0) return ncclSuccess;
  return error(ncclInvalidUsage,
               "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
               "configuration.");
#else
  return error(ncclInvalidUsage,
               ("Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " + std::to_string(other) +
                " both on CUDA device " + std::to_string((comm.device + 1) * 1000))
                   .c_str());
#endif
}

// Called in its own thread, where another device is current.
ncclResult_t join(const Handle& comm) {
  cudaSetDevice(comm->device);
  if (setting("NO_SHM", 0) != 0)
    return error(ncclSystemError,
                 "Error: failed to extend /dev/shm/nccl-abc to 4194660 bytes, error: No space left on device");
  static std::atomic<int> made{0};
  if (++made == setting("INIT_HANGS", -1)) {
    while (!comm->stopped()) moment();
    return error(ncclInternalError, "aborted while it was made");
  }
  moment();
  const size_t bytes = comm->ctas == 1 && !comm->blocking ? 0 : static_cast<size_t>(setting("COMM_MIB", 0)) << 20;
  if (bytes > 0 && cudaMalloc(&comm->buffers, bytes) != cudaSuccess)
    return error(ncclUnhandledCudaError, ("Failed to CUDA calloc async " + std::to_string(bytes) + " bytes").c_str());
  comm->join();
  return comm->stopped() ? ncclInternalError : check_devices(*comm);
}

int ctas_of(const ncclConfig_t* config) {
  return config == nullptr || config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 0 : config->maxCTAs;
}
bool bad_config(const ncclConfig_t* config) { return config != nullptr && config->magic != 0xcafebeef; }

// Assigns ranks of the new communicator, once all ranks of the old one have published their color and key.
ncclResult_t agree_on_split(const Handle& parent, const Handle& child, int color, int key) {
  const int number = parent->splits++;
  if (number >= kMaxSplits) die("more splits than the substitute has room for");
  Split& split = parent->segment->splits[number];
  split.color[parent->rank] = color;
  split.key[parent->rank] = key;
  split.arrived.fetch_add(1);
  for (auto& bell : parent->segment->bells) ring(bell);
  while (split.arrived.load() < static_cast<uint32_t>(parent->ranks)) {
    if (child->stopped()) return ncclInternalError;
    const uint32_t seen = parent->segment->bells[parent->rank].load();
    if (split.arrived.load() < static_cast<uint32_t>(parent->ranks)) wait(parent->segment->bells[parent->rank], seen);
  }
  child->ranks = child->rank = 0;
  for (int rank = 0; rank < parent->ranks; ++rank) {
    if (split.color[rank] != color) continue;
    ++child->ranks;
    child->rank += split.key[rank] < key || (split.key[rank] == key && rank < parent->rank) ? 1 : 0;
  }
  child->id = mix(mix(parent->id + static_cast<uint64_t>(number)) + static_cast<uint64_t>(color));
  return join(child);
}

}  // namespace
}  // namespace substitute

using namespace substitute;  // NOLINT: the C entry points follow

ENTRY ncclResult_t ncclGetVersion(int* version) { return *version = SUBSTITUTE_VERSION, ncclSuccess; }
ENTRY const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const kTexts[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}
ENTRY const char* ncclGetLastError(ncclComm_t) {
  std::lock_guard lock(last_error_lock);
  thread_local std::string copy;
  copy = last_error();
  return copy.c_str();
}

ENTRY ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& byte : id->internal) byte = static_cast<char>(random());
  return ncclSuccess;
}
ENTRY ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int ranks, ncclUniqueId id, int rank,
                                          ncclConfig_t* config) {
  if (rank < 0 || rank >= ranks || ranks > kMaxRanks) return error(ncclInvalidArgument, "there is no such rank");
  if (bad_config(config)) return error(ncclInvalidArgument, "the configuration was not initialized");
  auto comm = std::make_shared<Comm>();
  std::memcpy(&comm->id, id.internal, sizeof comm->id);
  comm->rank = rank;
  comm->ranks = ranks;
  comm->blocking = config == nullptr || config->blocking != 0;
  comm->ctas = ctas_of(config);
  *result = made(comm);
  cudaGetDevice(&comm->device);
  return in_background(comm, [comm] { return join(comm); });
}
ENTRY ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  const Handle parent = of(handle);
  if (parent->state != ncclSuccess) return error(ncclInvalidArgument, "the communicator to split is still in progress");
  if (bad_config(config)) return error(ncclInvalidArgument, "the configuration was not initialized");
  auto child = std::make_shared<Comm>();
  child->blocking = config == nullptr ? parent->blocking : config->blocking != 0;
  child->ctas = config == nullptr ? parent->ctas : ctas_of(config);
  child->device = parent->device;
  child->parent = parent.get();
  *result = nullptr;
  return in_background(parent, [parent, child, color, key, result] {
    const ncclResult_t agreed = agree_on_split(parent, child, color, key);
    child->parent = nullptr;
    if (agreed == ncclSuccess) *result = made(child);
    return agreed;
  });
}
ENTRY ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return *state = of(comm)->state, ncclSuccess;
}
ENTRY ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const Handle comm = of(handle);
  if (comm->state != ncclSuccess) return error(ncclInvalidArgument, "finalized while something is in progress");
  return in_background(comm, [comm] {
    while (comm->queued > 0 && !comm->aborted) moment();
    return ncclSuccess;
  });
}
ENTRY ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Handle comm = of(handle);
  while (comm->state == ncclInProgress || comm->queued > 0) moment();
  cudaFree(std::exchange(comm->buffers, nullptr));
  comm->magic = kFreed;
  return ncclSuccess;
}
ENTRY ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Handle comm = of(handle);
  while (setting("ABORT_HANGS", 0) != 0) std::this_thread::sleep_for(std::chrono::hours(1));
  comm->aborted = true;
  while (comm->state == ncclInProgress || comm->queued > 0) {
    if (comm->segment != nullptr) ring(comm->segment->bells[comm->rank]);
    moment();
  }
  comm->magic = kFreed;
  return ncclSuccess;
}

// For the tests: number of threads that calls have started.
ENTRY int substitute_threads() { return threads; }

ENTRY ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ENTRY ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  const std::vector<Grouped> all = std::exchange(grouped, {});
  return launch(all);
}

ENTRY ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  return add(comm, stream, {What::send_recv, static_cast<const char*>(data), nullptr, count, type, ncclSum, peer});
}
ENTRY ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                            cudaStream_t stream) {
  return add(comm, stream, {What::send_recv, nullptr, static_cast<char*>(data), count, type, ncclSum, peer});
}

static ncclResult_t collective(What what, const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {what, static_cast<const char*>(send), static_cast<char*>(recv), count, type, op, root});
}
ENTRY ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream) {
  return collective(What::all_reduce, send, recv, count, type, op, 0, comm, stream);
}
ENTRY ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream) {
  return collective(What::reduce_scatter, send, recv, count, type, op, 0, comm, stream);
}
ENTRY ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream) {
  return collective(What::all_gather, send, recv, count, type, ncclSum, 0, comm, stream);
}
ENTRY ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream) {
  return collective(What::broadcast, send, recv, count, type, ncclSum, root, comm, stream);
}
ENTRY ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                              ncclComm_t comm, cudaStream_t stream) {
  return collective(What::reduce, send, recv, count, type, op, root, comm, stream);
}

#if SUBSTITUTE_VERSION >= 21900
ENTRY ncclResult_t ncclMemAlloc(void** ptr, size_t bytes) {
  if (cudaMalloc(ptr, bytes) == cudaSuccess) return ncclSuccess;
  return error(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
}
ENTRY ncclResult_t ncclMemFree(void* ptr) { return cudaFree(ptr), ncclSuccess; }
ENTRY ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  of(comm);
  if (!reachable(buffer, bytes)) return error(ncclInvalidArgument, "memory that the device cannot reach is registered");
  *handle = new char;
  ++registrations;
  return ncclSuccess;
}
ENTRY ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  of(comm);
  --registrations;
  return delete static_cast<char*>(handle), ncclSuccess;
}
#endif
// For the tests: number of registered buffers.
ENTRY int substitute_registrations() { return registrations; }

#if SUBSTITUTE_VERSION >= 22800
ENTRY ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                                cudaStream_t stream) {
  return collective(What::all_to_all, send, recv, count, type, ncclSum, 0, comm, stream);
}
ENTRY ncclResult_t ncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream) {
  return collective(What::gather, send, recv, count, type, ncclSum, root, comm, stream);
}
ENTRY ncclResult_t ncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream) {
  return collective(What::scatter, send, recv, count, type, ncclSum, root, comm, stream);
}
#endif
