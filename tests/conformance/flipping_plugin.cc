// The pipe plugin with a fault that no protocol sees: one bit of every message from 4 KiB on is wrong. For the tests of
// `prun bench`, which compares results.
#include "prun/transport.h"
#define prun_transport_v1 pipe_transport_v1
#pragma GCC diagnostic ignored "-Wsubobject-linkage"  // of a source that is included
#include "pipe_plugin.cc"
#undef prun_transport_v1

#include <list>

namespace {

const prun_transport* g_pipe = nullptr;

prun_status flipping_batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req,
                           prun_result* result) {
  static std::list<std::vector<char>> sent;  // for good: nobody tells when a send has ended, and a test is short
  std::vector<prun_p2p> flipped(ops, ops + n);
  for (prun_p2p& op : flipped) {
    if (op.is_recv != 0 || op.bytes < 4096) continue;
    std::vector<char>& copy = sent.emplace_back(static_cast<char*>(op.ptr), static_cast<char*>(op.ptr) + op.bytes);
    copy[op.bytes / 2] ^= 1;
    op.ptr = copy.data();
  }
  return g_pipe->batch(ctx, flipped.data(), n, queue, req, result);
}

}  // namespace

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  static prun_transport table = *(g_pipe = pipe_transport_v1(host));
  table.name = "flipping";
  table.batch = flipping_batch;
  return &table;
}
