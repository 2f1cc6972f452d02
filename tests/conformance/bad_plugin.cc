// Plugins that a core must reject, or must accept although their table is shorter or longer than its own: one source,
// selected by PRUN_BAD. None of them moves data.
#include <cstddef>
#include <cstring>

#include "prun/transport.h"

namespace {

prun_status refuse(prun_result* result) {
  result->culprit = -1;
  std::strcpy(result->message, "this plugin only gets loaded");
  return PRUN_ENOTSUP;
}

// A table with extra entries, like one of a later prun.
struct Longer {
  prun_transport table;
  void* later[8];
};

Longer make() {
  Longer longer{};
  prun_transport& t = longer.table;
  t.size = sizeof t;
  t.abi = PRUN_TRANSPORT_ABI;
  t.name = "bad";
  t.version = "0.1.0";
  t.summary = "for the tests";
  t.mem_kinds = 1u << PRUN_MEM_HOST;
  t.open = [](const prun_open_params*, prun_ctx**, prun_result* result) { return refuse(result); };
  t.address = [](prun_ctx*, void*, size_t*, prun_result* result) { return refuse(result); };
  t.connect = [](prun_ctx*, const void* const*, const size_t*, prun_result* result) { return refuse(result); };
  t.batch = [](prun_ctx*, const prun_p2p*, size_t, prun_queue, prun_req**, prun_result* result) {
    return refuse(result);
  };
  t.test = [](prun_ctx*, prun_req*, prun_result* result) { return refuse(result); };
  t.abort = [](prun_ctx*) {};
  t.close = [](prun_ctx*) {};
  const char* which = PRUN_BAD;
  if (std::strcmp(which, "future") == 0) t.abi = PRUN_TRANSPORT_ABI + 1;
  if (std::strcmp(which, "past") == 0) t.abi = 0;
  if (std::strcmp(which, "tiny") == 0) t.size = 8;
  if (std::strcmp(which, "missing") == 0) t.batch = nullptr;
  if (std::strcmp(which, "bits") == 0) t.must_understand = 4;
  if (std::strcmp(which, "nameless") == 0) t.name = nullptr;
  if (std::strcmp(which, "longer") == 0) t.size = sizeof longer;
  if (std::strcmp(which, "shorter") == 0) {  // mandatory functions only; the rest must not be read
    t.size = offsetof(prun_transport, wait_fd);
    std::memset(reinterpret_cast<char*>(&t) + t.size, 0x55, sizeof t - t.size);
  }
  return longer;
}

}  // namespace

extern "C" const prun_transport* prun_transport_v1(const prun_host*) {
  static const Longer longer = make();
  return std::strcmp(PRUN_BAD, "null") == 0 ? nullptr : &longer.table;
}
