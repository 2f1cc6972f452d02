// The table of functions of the NCCL transport. Exceptions end here: each function turns a Failure into a status.
#include <prun/alarm.h>
#include <prun/transport.h>

#include <exception>
#include <memory>
#include <new>
#include <string_view>

#include "context.h"

namespace prun_nccl {
namespace {

const prun_host* host_of_process = nullptr;

template <typename Body>
prun_status guarded(prun_result* result, Body body) {
  try {
    return body();
  } catch (const Failure& failure) {
    return report(failure, result);
  } catch (const std::bad_alloc&) {
    return report({PRUN_ENOMEM, -1, "out of memory"}, result);
  } catch (const std::exception& error) {
    return report({PRUN_ESYSTEM, -1, error.what()}, result);
  }
}

prun_status open(const prun_open_params* params, prun_ctx** ctx, prun_result* result) {
  return guarded(result, [&] {
    *ctx = new prun_ctx{Context(*params, host_of_process)};
    return PRUN_OK;
  });
}

prun_status address(prun_ctx* ctx, void* blob, size_t* bytes, prun_result* result) {
  return guarded(result, [&] {
    *bytes = ctx->context.address(blob, *bytes);
    return PRUN_OK;
  });
}

prun_status connect(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result) {
  return guarded(result, [&] { return ctx->context.connect(blobs, bytes, result); });
}

// A program's own queue must have everything in it when the call returns, or what the program enqueues next would
// overtake it. Our own queues have time: test goes on.
void start(Context& context, std::unique_ptr<prun_req>& request, prun_queue queue) {
  if (queue.kind == PRUN_MEM_CUDA)
    enqueue(context, *request);
  else
    for (prun_req::Part& part : request->parts) part.comm->pump();
}

prun_status submit(Context& context, prun_req* made, prun_queue queue, prun_req** req) {
  std::unique_ptr<prun_req> request(made);
  try {
    start(context, request, queue);
  } catch (const Failure&) {
    for (prun_req::Part& part : request->parts) part.comm->withdraw(&part.launch);
    throw;
  }
  *req = request.release();
  return PRUN_OK;
}

prun_status batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req, prun_result* result) {
  return guarded(result, [&] {
    Context& context = ctx->context;
    if (context.world == nullptr) throw Failure{PRUN_EINVAL, -1, "batch before connect"};
    if (context.aborted()) throw Failure{PRUN_EABORTED, -1, "aborted"};
    context.use_device();
    const RelaxedCapture guard(context.library->cuda());
    return submit(context, start_batch(context, ops, n, queue), queue, req);
  });
}

prun_status test(prun_ctx* ctx, prun_req* req, prun_result* result) {
  return guarded(result, [&] { return test_request(ctx->context, req, result); });
}

void abort(prun_ctx* ctx) { ctx->context.abort(); }
void close(prun_ctx* ctx) { delete ctx; }

prun_status mem_alloc(prun_ctx* ctx, size_t bytes, int kind, void** ptr, void** handle, prun_result* result) {
  return guarded(result, [&] {
    ctx->context.use_device();
    Region* region = ctx->context.memory.allocate(bytes, kind);
    *ptr = region->ptr;
    if (handle != nullptr) *handle = region;
    return PRUN_OK;
  });
}

prun_status mem_reg(prun_ctx* ctx, void* ptr, size_t bytes, int kind, void** handle, prun_result* result) {
  return guarded(result, [&] {
    *handle = ctx->context.memory.add(ptr, bytes, kind);
    return PRUN_OK;
  });
}

void mem_free(prun_ctx* ctx, void* ptr, void* handle) {
  ctx->context.use_device();
  ctx->context.deregister(ptr);
  ctx->context.memory.remove(ptr, handle);
}

prun_status comm_create(prun_ctx* ctx, const int* ranks, int n, int lane, prun_comm** comm, prun_result* result) {
  return guarded(result, [&] {
    if (ctx->context.world == nullptr) throw Failure{PRUN_EINVAL, -1, "comm_create before connect"};
    *comm = ctx->context.create(ranks, n, lane);
    return PRUN_OK;
  });
}

prun_status comm_test(prun_ctx* ctx, prun_comm* comm, prun_result* result) {
  return guarded(result, [&] {
    Context& context = ctx->context;
    if (context.aborted()) throw Failure{PRUN_EABORTED, -1, "aborted"};
    int missing = -1;
    if (comm->ready(missing)) return PRUN_OK;
    if (const int lost = context.board.lost_among(comm->ranks()); lost >= 0)
      throw Failure{PRUN_EPEER, lost, "rank #" + std::to_string(lost) + " is gone"};
    context.board.wait(std::chrono::milliseconds(1));
    return report({PRUN_AGAIN, missing, ""}, result);
  });
}

void comm_free(prun_ctx* ctx, prun_comm* comm) { ctx->context.free(comm); }

prun_status coll(prun_ctx* ctx, prun_comm* comm, const prun_coll_params* params, prun_queue queue, prun_req** req,
                 prun_result* result) {
  return guarded(result, [&] {
    Context& context = ctx->context;
    if (context.aborted()) throw Failure{PRUN_EABORTED, -1, "aborted"};
    context.use_device();
    const RelaxedCapture guard(context.library->cuda());
    prun_req* request = start_collective(context, *comm, *params, queue);
    return request == nullptr ? PRUN_ENOTSUP : submit(context, request, queue, req);
  });
}

prun_status coll_seen(prun_ctx*, prun_comm* comm, prun_coll_seen* seen) {
  const size_t size = std::min(seen->size, sizeof *seen);
  std::memcpy(seen, &comm->seen, size);
  seen->size = size;
  return PRUN_OK;
}

// That a rank is gone on the line beside NCCL is no error: it may have ended well while this one's device still
// computes.
prun_status alarm(prun_ctx* ctx, prun_comm* comm, int waited_ms, prun_result* result) {
  return guarded(result, [&] {
    if (ctx->context.aborted()) throw Failure{PRUN_EABORTED, -1, "aborted"};
    const int silent = comm->check(std::chrono::milliseconds(waited_ms));
    return silent < 0 ? PRUN_OK : report({PRUN_AGAIN, silent, ""}, result);
  });
}
constexpr prun_alarm kAlarm = {sizeof(prun_alarm), alarm};
const void* extension(const char* id) { return std::string_view(id) == PRUN_ALARM ? &kAlarm : nullptr; }

// Only where it can work at all; how good it is for host memory nobody should ask.
int score(const prun_open_params* params, const int*, int) {
  try {
    const Options options = parse_options(params->options != nullptr ? params->options : "");
    return missing_here(options.library, options.cudart).empty() ? 80 : 0;
  } catch (const Failure&) {  // opening it says what is wrong with them
    return 80;
  }
}

const prun_transport* table() {
  static const std::string missing = missing_here();
  static const std::string summary = "NVIDIA GPUs, by NCCL 2.18 or newer; " +
                                     (missing.empty() ? "here " + found_here() : "not usable here: " + missing);
  static const prun_transport t = {
      .size = sizeof(prun_transport),
      .abi = PRUN_TRANSPORT_ABI,
      .must_understand = 0,
      .name = "nccl",
      .version = "1.0.0",
      .summary = summary.c_str(),
      .mem_kinds = 1u << PRUN_MEM_HOST | 1u << PRUN_MEM_CUDA,
      .local_only = 0,
      .queue_ordered = 1,
      .open = open,
      .address = address,
      .connect = connect,
      .batch = batch,
      .test = test,
      .abort = abort,
      .close = close,
      .mem_alloc = mem_alloc,
      .mem_reg = mem_reg,
      .mem_free = mem_free,
      .comm_create = comm_create,
      .comm_test = comm_test,
      .comm_free = comm_free,
      .coll = coll,
      .coll_seen = coll_seen,
      .score = score,
      .ext = extension,
  };
  return &t;
}

}  // namespace
}  // namespace prun_nccl

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  if (host == nullptr || host->abi < PRUN_TRANSPORT_ABI) {
    if (host != nullptr && host->log != nullptr) host->log(2, "nccl: this host is too old for the plugin");
    return nullptr;
  }
  prun_nccl::host_of_process = host;
  return prun_nccl::table();
}
