// The table of functions of the ucx transport. Exceptions end here: each function turns a Failure into a status.
#include <prun/transport.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <new>

#include "context.h"
#include "log.h"

struct prun_ctx {
  std::unique_ptr<prun_ucx::Context> context;
};

namespace prun_ucx {
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

// A request that `start` makes.
template <typename Start>
prun_status request(prun_req** req, prun_result* result, Start start) {
  return guarded(result, [&] {
    *req = start();
    return PRUN_OK;
  });
}

prun_status open(const prun_open_params* params, prun_ctx** ctx, prun_result* result) {
  return guarded(result, [&] {
    if (params->ranks < 1 || params->rank < 0 || params->rank >= params->ranks)
      throw Failure{PRUN_EINVAL, -1, "the rank is outside the world"};
    *ctx = new prun_ctx{std::make_unique<Context>(*params, host_of_process)};
    return PRUN_OK;
  });
}

prun_status address(prun_ctx* ctx, void* blob, size_t* bytes, prun_result* result) {
  return guarded(result, [&] {
    *bytes = ctx->context->address(blob, *bytes);
    return PRUN_OK;
  });
}

prun_status connect(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result) {
  return guarded(result, [&] { return ctx->context->connect(blobs, bytes, result); });
}

prun_status batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue, prun_req** req, prun_result* result) {
  return request(req, result, [&] { return ctx->context->batch(ops, n); });
}

prun_status test(prun_ctx* ctx, prun_req* req, prun_result* result) {
  return guarded(result, [&] { return ctx->context->test(req, result); });
}

void abort(prun_ctx* ctx) { ctx->context->abort(); }

void close(prun_ctx* ctx) {
  Context::close(std::move(ctx->context));
  delete ctx;
}

int wait_fd(prun_ctx* ctx) { return ctx->context->wait_fd(); }

prun_status mem_alloc(prun_ctx* ctx, size_t bytes, int mem_kind, void** ptr, void** handle, prun_result* result) {
  return guarded(result, [&] {
    if (mem_kind != PRUN_MEM_HOST) return report({PRUN_ENOTSUP, -1, "ucx has host memory only"}, result);
    *ptr = ctx->context->allocate(bytes, handle);
    return PRUN_OK;
  });
}

void mem_free(prun_ctx* ctx, void*, void* handle) { ctx->context->free(handle); }

prun_status put(prun_ctx* ctx, int peer, const void* src, void*, size_t dst_offset, size_t bytes, uint64_t signal,
                prun_req** req, prun_result* result) {
  return request(req, result, [&] { return ctx->context->put(peer, src, dst_offset, bytes, signal); });
}

prun_status get(prun_ctx* ctx, int peer, void* dst, void*, size_t src_offset, size_t bytes, prun_req** req,
                prun_result* result) {
  return request(req, result, [&] { return ctx->context->get(peer, dst, src_offset, bytes); });
}

prun_status signal(prun_ctx* ctx, int peer, uint64_t number, prun_req** req, prun_result* result) {
  return request(req, result, [&] { return ctx->context->signal(peer, number); });
}

prun_status wait_signal(prun_ctx* ctx, int peer, uint64_t number, uint64_t count, prun_req** req, prun_result* result) {
  return request(req, result, [&] { return ctx->context->wait_signal(peer, number, count); });
}

// A port of an RDMA device that is up.
bool has_rdma() {
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", none)) {
      std::string state;
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") != std::string::npos) return true;
    }
  }
  return false;
}

// Where UCX drives RDMA nothing else of ours does; over TCP socket is faster, and between ranks of one host shm.
int score(const prun_open_params*, const int*, int) { return has_rdma() ? 60 : 10; }

const prun_transport kTable = {
    .size = sizeof(prun_transport),
    .abi = PRUN_TRANSPORT_ABI,
    .must_understand = 0,
    .name = "ucx",
    .version = "1.0.0",
    .summary = "UCX: InfiniBand and RoCE, shared memory, TCP",
    .mem_kinds = 1u << PRUN_MEM_HOST,
    .local_only = 0,
    .queue_ordered = 0,
    .open = open,
    .address = address,
    .connect = connect,
    .batch = batch,
    .test = test,
    .abort = abort,
    .close = close,
    .wait_fd = wait_fd,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .score = score,
    .put = put,
    .get = get,
    .signal = signal,
    .wait_signal = wait_signal,
};

}  // namespace
}  // namespace prun_ucx

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  if (host == nullptr || host->abi < PRUN_TRANSPORT_ABI) {
    if (host != nullptr && host->log != nullptr) host->log(2, "ucx: this host is too old for the plugin");
    return nullptr;
  }
  prun_ucx::host_of_process = host;
  prun_ucx::take_over_log(host);
  return &prun_ucx::kTable;
}
