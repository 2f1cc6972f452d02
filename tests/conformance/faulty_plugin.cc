// The pipe plugin with one fault, chosen by its option `fault`: errors of a transport that otherwise seems to work.
// `prun conform` finds each (faulty_plugins_test.py); some serve tests of prun itself.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <list>
#include <string>
#include <string_view>
#include <thread>

#include "prun/transport.h"
#define prun_transport_v1 pipe_transport_v1
#pragma GCC diagnostic ignored "-Wsubobject-linkage"  // of the included source
#include "pipe_plugin.cc"
#undef prun_transport_v1

namespace {

constexpr const char* kFaults[] = {"leaks_in_open",  "leaks_in_batch", "leaks_peers", "short_sizes",   "short_lanes",
                                   "slow_abort",     "late_abort",     "no_secret",   "blames_rank_0", "any_size",
                                   "swaps_messages", "writes_beyond",  "spins",       "flips_bits",    "flips_2_of_50"};

const prun_transport* g_pipe = nullptr;
std::string g_fault;  // of the process
bool has(std::string_view fault) { return g_fault == fault; }

prun_status faulty_open(const prun_open_params* params, prun_ctx** ctx, prun_result* result) {
  constexpr std::string_view kOption = "fault=";
  prun_open_params own = *params;
  if (std::string_view(params->options).starts_with(kOption)) {
    g_fault = params->options + kOption.size();
    own.options =
        std::find(std::begin(kFaults), std::end(kFaults), g_fault) != std::end(kFaults) ? "" : "no_such_fault";
  }
  if (has("leaks_in_open")) (void)strdup("never freed");
  if (has("no_secret")) std::memset(own.job_secret, 0, sizeof own.job_secret);
  return g_pipe->open(&own, ctx, result);
}

prun_status faulty_connect(prun_ctx* ctx, const void* const* blobs, const size_t* bytes, prun_result* result) {
  const prun_status status = g_pipe->connect(ctx, blobs, bytes, result);
  if (status == PRUN_OK && has("leaks_peers")) (void)open("/dev/null", O_RDONLY | O_CLOEXEC);
  return status;
}

// Returns a copy with one bit in the middle flipped, the highest mantissa bit of an f32, because the optimizer's
// rounding may absorb a gradient's lowest bit. Copies are never freed, because the end of a send is not reported.
void* flipped(const prun_p2p& op) {
  static std::list<std::vector<char>> sent;
  std::vector<char>& copy = sent.emplace_back(static_cast<char*>(op.ptr), static_cast<char*>(op.ptr) + op.bytes);
  copy[op.bytes / 8 * 4 + 2] ^= 0x40;
  return copy.data();
}

bool is_flipped(const prun_p2p& op) {
  static int messages = 0;
  if (op.is_recv != 0 || op.bytes < 4096) return false;
  return has("flips_bits") || (has("flips_2_of_50") && ++messages % 25 == 0);
}

prun_status faulty_batch(prun_ctx* ctx, const prun_p2p* ops, size_t n, prun_queue queue, prun_req** req,
                         prun_result* result) {
  std::vector<prun_p2p> own(ops, ops + n);
  for (prun_p2p& op : own) {
    if (has("leaks_in_batch")) (void)strdup("never freed");
    if (has("short_sizes")) op.bytes = static_cast<uint32_t>(op.bytes);
    if (has("short_lanes")) op.tag = static_cast<uint8_t>(op.tag);
    if (is_flipped(op)) op.ptr = flipped(op);
    if (has("writes_beyond") && op.is_recv != 0) static_cast<char*>(op.ptr)[op.bytes] = 0;
    if (has("any_size") && op.is_recv != 0 && op.bytes % 8 == 0 && op.bytes > 8) op.bytes -= 8;
  }
  if (has("swaps_messages") && n > 1 && own.front().is_recv == 0) std::swap(own.front(), own.back());
  return g_pipe->batch(ctx, own.data(), n, queue, req, result);
}

prun_status faulty_test(prun_ctx* ctx, prun_req* req, prun_result* result) {
  using Clock = std::chrono::steady_clock;
  const prun_status status = g_pipe->test(ctx, req, result);
  if (status == PRUN_AGAIN && has("spins"))
    for (const auto end = Clock::now() + std::chrono::milliseconds(2); Clock::now() < end;) continue;
  if (status == PRUN_EPEER && has("blames_rank_0")) {
    result->culprit = 0;
    std::strcpy(result->message, "rank #0 is gone");
  }
  return status;
}

void faulty_abort(prun_ctx* ctx) {
  constexpr auto kTooLong = std::chrono::milliseconds(300);
  if (has("slow_abort")) std::this_thread::sleep_for(kTooLong);
  if (has("late_abort"))
    std::thread([ctx, kTooLong] {
      std::this_thread::sleep_for(kTooLong);
      g_pipe->abort(ctx);
    }).detach();
  else
    g_pipe->abort(ctx);
}

}  // namespace

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  static prun_transport table = *(g_pipe = pipe_transport_v1(host));
  table.name = "faulty";
  table.open = faulty_open;
  table.connect = faulty_connect;
  table.batch = faulty_batch;
  table.test = faulty_test;
  table.abort = faulty_abort;
  return &table;
}
