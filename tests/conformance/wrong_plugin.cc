// A plugin that fails in operation in the way that its only option selects, and behaves until then. With
// PRUN_CRASHES_WHEN_LOADED it crashes while loading.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "prun/transport.h"

struct prun_ctx {
  char way[64];
};
struct prun_req {
  char unused;
};

namespace {

prun_ctx g_context;
prun_req g_request;

bool is(const char* way) { return std::strcmp(g_context.way, way) == 0; }

prun_status say(prun_result* result, prun_status status, int culprit, const char* text) {
  result->culprit = culprit;
  std::snprintf(result->message, sizeof result->message, "%s", text);
  return status;
}

prun_status wrong_open(const prun_open_params* params, prun_ctx** ctx, prun_result*) {
  std::snprintf(g_context.way, sizeof g_context.way, "%s", params->options);
  if (is("crashes_in_open")) raise(SIGSEGV);
  if (is("blocks_in_open")) pause();
  *ctx = is("no_context") ? nullptr : &g_context;
  return PRUN_OK;
}

prun_status wrong_address(prun_ctx*, void* blob, size_t* bytes, prun_result*) {
  std::memset(blob, 'a', *bytes + (is("writes_beyond") ? 1 : 0));
  if (is("long_address")) *bytes += 1;
  return PRUN_OK;
}

prun_status wrong_connect(prun_ctx*, const void* const*, const size_t*, prun_result* result) {
  if (is("unreachable")) return say(result, PRUN_AGAIN, 1, "no route");
  if (is("refused")) return say(result, PRUN_EPEER, 1, "connection refused");
  return PRUN_OK;
}

prun_status wrong_batch(prun_ctx*, const prun_p2p*, size_t, prun_queue, prun_req** req, prun_result*) {
  *req = is("no_request") ? nullptr : &g_request;
  return PRUN_OK;
}

prun_status wrong_test(prun_ctx*, prun_req*, prun_result* result) {
  if (is("blocks_in_test")) pause();
  if (is("crashes_in_test")) raise(SIGSEGV);
  if (is("wrong_status")) return static_cast<prun_status>(77);
  if (is("wrong_culprit")) return say(result, PRUN_EPEER, 4711, "it went away");
  if (is("endless_message")) return std::memset(result->message, 'x', sizeof result->message), PRUN_ESYSTEM;
  usleep(300000);  // slow_in_test
  return PRUN_AGAIN;
}

void wrong_abort(prun_ctx*) {}
void wrong_close(prun_ctx*) {}

}  // namespace

extern "C" const prun_transport* prun_transport_v1(const prun_host*) {
#ifdef PRUN_CRASHES_WHEN_LOADED
  raise(SIGSEGV);
#endif
  static prun_transport t{};
  t.size = sizeof t;
  t.abi = PRUN_TRANSPORT_ABI;
  t.name = "wrong";
  t.version = "0.1.0";
  t.summary = "for the tests";
  t.mem_kinds = 1u << PRUN_MEM_HOST;
  t.open = wrong_open;
  t.address = wrong_address;
  t.connect = wrong_connect;
  t.batch = wrong_batch;
  t.test = wrong_test;
  t.abort = wrong_abort;
  t.close = wrong_close;
  return &t;
}
