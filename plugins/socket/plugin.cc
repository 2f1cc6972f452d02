// The table of functions of the socket transport. Exceptions end here: each function turns a Failure into a status.
#include <prun/transport.h>

#include <exception>
#include <new>

#include "context.h"

namespace prun_socket {

const char* const kVersion = "1.0.0";

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
    if (params->ranks < 1 || params->rank < 0 || params->rank >= params->ranks)
      throw Failure{PRUN_EINVAL, -1, "the rank is outside the world"};
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
  return guarded(result, [&] {
    if (ctx->context.connect(blobs, bytes)) return PRUN_OK;
    return report(ctx->context.missing(), result);
  });
}

prun_status batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue, prun_req** req, prun_result* result) {
  return guarded(result, [&] {
    *req = ctx->context.batch(ops, n);
    return PRUN_OK;
  });
}

prun_status test(prun_ctx* ctx, prun_req* req, prun_result* result) {
  return guarded(result, [&] { return ctx->context.test(req, result); });
}

void abort(prun_ctx* ctx) { ctx->context.abort(); }
void close(prun_ctx* ctx) { delete ctx; }
int wait_fd(prun_ctx* ctx) { return ctx->context.wait_fd(); }

// Any ranks can be reached; memory that ranks share is better where it can be had.
int score(const prun_open_params*, const int*, int) { return 20; }

const prun_transport kTable = {
    .size = sizeof(prun_transport),
    .abi = PRUN_TRANSPORT_ABI,
    .must_understand = 0,
    .name = "socket",
    .version = kVersion,
    .summary = "TCP between hosts, AF_UNIX stream sockets between ranks of one host",
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
    .score = score,
    .ext = extension,
};

}  // namespace
}  // namespace prun_socket

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  if (host == nullptr || host->abi < PRUN_TRANSPORT_ABI) {
    if (host != nullptr && host->log != nullptr) host->log(2, "socket: this host is too old for the plugin");
    return nullptr;
  }
  prun_socket::host_of_process = host;
  return &prun_socket::kTable;
}
