// Opening, waiting, failing: all code that interprets a prun_status.
#include "comm/transport/transport_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/text.h"
#include "comm/transport/job_state.h"
#include "comm/transport/long_wait.h"
#include "comm/transport/watchdog.h"

namespace prun {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kAbortGrace = std::chrono::milliseconds(300);
// A slower transfer counts as stalled: large messages extend the deadline by their bytes over this rate.
constexpr double kSlowestBytesPerSecond = 10e6;

const char* status_name(prun_status status) {
  static const char* const kNames[] = {"ok",
                                       "not finished",
                                       "not supported",
                                       "wrong use of the transport",
                                       "out of memory",
                                       "the peer is gone",
                                       "sizes or calls differ",
                                       "aborted",
                                       "corrupt data",
                                       "system error"};
  return status >= 0 && status <= PRUN_ESYSTEM ? kNames[status] : "unknown status";
}

Exit exit_of(prun_status status) {
  switch (status) {
    case PRUN_AGAIN:
      return Exit::hang;
    case PRUN_ENOMEM:
      return Exit::out_of_memory;
    case PRUN_EMISMATCH:
      return Exit::mismatch;
    case PRUN_ECORRUPT:
      return Exit::corrupt_link;
    default:
      return Exit::transport;
  }
}

// Turns a result into a fault of the plugin.
prun_status blame(prun_result& result, const std::string& what) {
  std::snprintf(result.message, sizeof result.message, "%s", what.c_str());
  result.culprit = -1;
  return PRUN_ESYSTEM;
}

}  // namespace

std::string status_text(prun_status status, const prun_result& result) {
  return result.message[0] != '\0' ? std::string(result.message) : std::string(status_name(status));
}

double limit_s(double deadline_s, int64_t bytes) {
  return deadline_s + static_cast<double>(bytes) / kSlowestBytesPerSecond;
}

std::string fill_ranks(std::string_view text, const std::vector<int>& numbers, std::vector<int>* named) {
  std::string filled;
  while (!text.empty()) {
    size_t at = std::min(text.find('#'), text.size());
    filled += text.substr(0, at);
    text.remove_prefix(at);
    size_t digits = text.empty() ? 0 : std::min(text.find_first_not_of("0123456789", 1), text.size()) - 1;
    size_t rank = numbers.size();
    if (digits > 0) std::from_chars(text.data() + 1, text.data() + 1 + digits, rank);
    if (rank < numbers.size()) {
      filled += std::to_string(numbers[rank]);
      if (named != nullptr) named->push_back(numbers[rank]);
    } else {
      filled += text.substr(0, digits + 1);
    }
    text.remove_prefix(std::min(digits + 1, text.size()));
  }
  return filled;
}

TransportSession::TransportSession(Plugin plugin, const WorldOptions& options, std::vector<int> members)
    : plugin_(std::move(plugin)), options_(options), members_(std::move(members)) {
  std::vector<int> all(options.ranks);
  std::iota(all.begin(), all.end(), 0);
  if (members_.empty()) members_ = all;
  renumbered_ = !std::equal(members_.begin(), members_.end(), all.begin());
  OpenParams params(options, plugin_.name);
  if (members_.size() != all.size()) {  // a world of one host
    params.rank = params.local_rank = plugin_rank(options.rank);
    params.ranks = params.local_ranks = std::ssize(members_);
  }
  prun_result result = empty_result();
  report_activity(fmt::format("opening transport {} ({})", plugin_.name, plugin_.path));
  PluginCall guard("open");
  const prun_status status = checked(table().open(&params, &ctx_, &result), result, "open");
  if (status == PRUN_OK && ctx_ == nullptr) {
    throw Error(Exit::transport, fmt::format("opening {}: open returned no context ({})", plugin_.name, plugin_.path));
  }
  // Users write only the options of params, so PRUN_EINVAL is theirs; PRUN_ENOTSUP means a missing device or library.
  if (status == PRUN_EINVAL || status == PRUN_ENOTSUP) {
    throw usage_error(fmt::format("transport {}: {}", plugin_.name, text_of(status, result)));
  }
  if (status != PRUN_OK) fail(status, result, "opening");
}

int TransportSession::plugin_rank(int rank) const {
  auto at = std::find(members_.begin(), members_.end(), rank);
  return at == members_.end() ? -1 : static_cast<int>(at - members_.begin());
}

prun_status TransportSession::checked(prun_status status, prun_result& result, const char* function) const {
  if (status == PRUN_OK) return status;
  result.message[sizeof result.message - 1] = '\0';
  const int number = static_cast<int>(status), ranks = std::ssize(members_);
  if (number < PRUN_OK || number > PRUN_ESYSTEM)
    return blame(result, fmt::format("{} returned status {}, which there is not", function, number));
  if (result.culprit < -1 || result.culprit >= ranks) {  // the message may still help
    std::string text = status_text(status, result);
    return blame(result, fmt::format("{} blames rank {} of {}: {}", function, result.culprit, ranks, text));
  }
  if (result.culprit >= 0) result.culprit = members_[result.culprit];
  return status;
}

TransportSession::~TransportSession() {
  enqueued_.finish();
  PluginCall guard("close");
  for (const Memory& memory : memory_) {
    if (table().mem_free != nullptr) table().mem_free(ctx_, memory.begin, memory.handle);
  }
  table().close(ctx_);
}

void* TransportSession::allocate(int64_t bytes, prun_mem_kind kind) {
  if (table().mem_alloc == nullptr) return nullptr;
  void* ptr = nullptr;
  void* handle = nullptr;
  prun_result result;
  const prun_status status = call("mem_alloc", &prun_transport::mem_alloc, result, bytes, kind, &ptr, &handle);
  if (status == PRUN_ENOTSUP) return nullptr;
  if (status != PRUN_OK) fail(status, result, fmt::format("allocating {}", human_bytes(bytes)));
  PRUN_CHECK(reinterpret_cast<uintptr_t>(ptr) % kAlignBytes == 0, fmt::format("{} allocated at {}", plugin_.name, ptr));
  memory_.push_back({static_cast<char*>(ptr), bytes, handle});
  return ptr;
}

void TransportSession::adopt(void* ptr, int64_t bytes, prun_mem_kind kind) {
  if (table().mem_reg == nullptr) return;
  void* handle = nullptr;
  prun_result result;
  const prun_status status = call("mem_reg", &prun_transport::mem_reg, result, ptr, bytes, kind, &handle);
  if (status == PRUN_ENOTSUP) return;  // registration is optional
  if (status != PRUN_OK) fail(status, result, fmt::format("registering {}", human_bytes(bytes)));
  memory_.push_back({static_cast<char*>(ptr), bytes, handle});
}

prun_status TransportSession::batch(std::vector<prun_p2p>& ops, prun_req** req, prun_result& result, prun_queue queue) {
  for (prun_p2p& op : ops) {
    op.mem_handle = handle_of(op.ptr);
    if (renumbered_) op.peer = plugin_rank(op.peer);
  }
  const prun_status status = call("batch", &prun_transport::batch, result, ops.data(), ops.size(), queue, req);
  return status == PRUN_OK && *req == nullptr ? blame(result, "batch returned no request") : status;
}

void* TransportSession::handle_of(const void* ptr) const {
  for (const Memory& memory : memory_) {
    if (ptr >= memory.begin && ptr < memory.begin + memory.bytes) return memory.handle;
  }
  return nullptr;
}

prun_status TransportSession::wait(prun_req* req, int64_t bytes, prun_result& result) {
  // Reads the clock only after the first test, because small messages mostly end there.
  prun_status status = test(req, result);
  if (status != PRUN_AGAIN) return status;
  AwakeTime waited;
  const std::chrono::duration<double> limit(limit_s(deadline_s() + patience_s_, bytes));
  LongWait long_wait;
  for (bool aborted = false;;) {
    status = test(req, result);
    const auto now = Clock::now();
    if (status == PRUN_AGAIN) long_wait.go_on(now, result.culprit);
    if (status != PRUN_AGAIN || waited.until(now) > limit) {
      long_wait.end(status);
      return status;
    }
    if (!aborted && job_aborted()) {  // for plugins that never call prun_host::aborted
      table().abort(ctx_);
      aborted = true;
    }
  }
}

prun_status TransportSession::finish(prun_req* req, int64_t bytes, prun_result& result) {
  const prun_status status = wait(req, bytes, result);
  if (status == PRUN_AGAIN) drain({req});
  return status;
}

void TransportSession::drain(const std::vector<prun_req*>& requests) {
  if (requests.empty()) return;
  abort();
  PluginCall guard("test");
  auto end = Clock::now() + std::chrono::seconds(1);
  for (prun_req* req : requests) {
    prun_result result = empty_result();
    while (table().test(ctx_, req, &result) == PRUN_AGAIN && Clock::now() < end) {
    }
  }
}

void TransportSession::abort() {
  set_job_aborted();
  PluginCall guard("abort");
  table().abort(ctx_);
}

void TransportSession::fail(prun_status status, const prun_result& result, const std::string& doing) const {
  if (status == PRUN_EPEER) {
    auto end = Clock::now() + kAbortGrace;
    while (!job_aborted() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (status == PRUN_EABORTED || (status == PRUN_EPEER && job_aborted())) throw Aborted(job_abort_reason());
  std::vector<int> named;
  const std::string text = fill_ranks(status_text(status, result), members_, &named);
  const bool names_culprit = std::find(named.begin(), named.end(), result.culprit) != named.end();
  const std::string peer = result.culprit < 0 || names_culprit ? "" : fmt::format("rank {}: ", result.culprit);
  Error error(exit_of(status), fmt::format("{} over {}: {}{}", doing, plugin_.name, peer, text));
  if (status == PRUN_EPEER && connected) error.peer = result.culprit;
  throw error;
}

void TransportSession::fail_late(const std::string& doing, const std::string& whom) const {
  throw Error(Exit::hang,
              fmt::format("{}: no progress for {}, waiting for {}", doing, human_seconds(deadline_s()), whom));
}

}  // namespace prun
