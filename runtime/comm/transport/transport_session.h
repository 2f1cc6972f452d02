// An opened transport: its requests end in time or throw, and the error names the culprit.
//
// A session may connect only some ranks, such as those of a host. The plugin then has a world of its own, numbered from
// 0; the session's interface uses the job's numbers, also for each "#N" of a message.
//
// Surprising fact: a lost peer is rarely the root cause; it usually means that the job is ending. A lost peer is
// therefore reported only after the launcher has had time to report the cause (kAbortGrace).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/transport/enqueued.h"
#include "comm/transport/plugin.h"
#include "comm/transport/watchdog.h"

namespace prun {

inline prun_result empty_result() { return prun_result{.size = sizeof(prun_result), .culprit = -1, .message = {}}; }
// Returns the text of a result: its message, or else the name of the status.
std::string status_text(prun_status status, const prun_result& result);
// Returns a plugin's message with numbers[N] for each "#N" (prun_result), and appends these numbers to `named`. An N
// without such a rank is left unchanged.
std::string fill_ranks(std::string_view text, const std::vector<int>& numbers, std::vector<int>* named = nullptr);
// Returns the limit of a request of so many bytes: the deadline, plus the time that large messages take on slow
// networks.
double limit_s(double deadline_s, int64_t bytes);

// Threads as for prun_transport: one thread opens, connects and closes; any may batch, test, wait and abort.
class TransportSession {
 public:
  // Opens the context. `members`: the ranks that it connects, including this one; empty = all. `options` are the job's
  // and must outlive the session. Throws Error(transport), or usage_error for options that the plugin refuses.
  TransportSession(Plugin plugin, const WorldOptions& options, std::vector<int> members = {});
  ~TransportSession();  // closes; all requests have ended
  TransportSession(const TransportSession&) = delete;
  TransportSession& operator=(const TransportSession&) = delete;

  const prun_transport& table() const { return plugin_.table; }
  prun_ctx* ctx() const { return ctx_; }
  const Plugin& plugin() const { return plugin_; }
  const WorldOptions& options() const { return options_; }
  double deadline_s() const { return options_.deadline_s; }
  const std::vector<int>& members() const { return members_; }
  int plugin_rank(int rank) const;  // the plugin's number of a rank of the job; -1 = not a member
  // Delays reports of deadlines, so that a rank that waits for the culprit itself reports first.
  void set_patience(double seconds) { patience_s_ = seconds; }

  // Returns zeroed memory of the transport (device memory: uninitialized), or null if it provides none.
  void* allocate(int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  // Lets the transport register foreign memory, if it supports that; the memory must outlive the session.
  void adopt(void* ptr, int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  void* handle_of(const void* ptr) const;  // handle of memory of allocate() or adopt(); null for other memory

  // Calls a function of the table whose last parameter is the result, under the watchdog. Translates the result's
  // culprit to the job's rank. An invalid status or culprit becomes an error that names the function.
  template <class... Params, class... Args>
  prun_status call(const char* name, prun_status (*prun_transport::*function)(prun_ctx*, Params...),
                   prun_result& result, Args... args) const {
    PluginCall guard(name);
    result.size = sizeof result;
    result.culprit = -1;
    result.message[0] = '\0';
    return checked((plugin_.table.*function)(ctx_, args..., &result), result, name);
  }
  prun_status checked(prun_status status, prun_result& result, const char* function) const;
  prun_status test(prun_req* req, prun_result& result) const {
    return call("test", &prun_transport::test, result, req);
  }
  // Calls prun_transport's batch with the job's ranks as peers; writes the plugin's ranks and the handles into `ops`.
  // PRUN_OK guarantees a request.
  prun_status batch(std::vector<prun_p2p>& ops, prun_req** req, prun_result& result,
                    prun_queue queue = {PRUN_MEM_HOST, nullptr});
  // Waits for a request for at most limit_s plus the patience. PRUN_AGAIN: the limit has passed; the request still
  // exists.
  prun_status wait(prun_req* req, int64_t bytes, prun_result& result);
  // Waits likewise, but drains a request that has not ended by then.
  prun_status finish(prun_req* req, int64_t bytes, prun_result& result);
  // Ends abandoned requests: aborts the context and tests them until they end.
  void drain(const std::vector<prun_req*>& requests);
  void abort();  // any thread
  Enqueued& enqueued() { return enqueued_; }

  // Returns the message, or else the name of the status, with the job's ranks.
  std::string text_of(prun_status status, const prun_result& result) const {
    return fill_ranks(status_text(status, result), members_);
  }
  // Throws the error that a failed status means to a user. `doing` opens the sentence.
  [[noreturn]] void fail(prun_status status, const prun_result& result, const std::string& doing) const;
  // Throws Error(hang): no progress within the deadline, waiting for `whom`.
  [[noreturn]] void fail_late(const std::string& doing, const std::string& whom) const;

  bool connected = false;  // to all its members
  int next_tag = 1;        // the lowest tag that no communicator of this rank uses; members agree on tags over tag 0

 private:
  struct Memory {
    char* begin;
    int64_t bytes;
    void* handle;
  };
  Plugin plugin_;
  const WorldOptions& options_;
  prun_ctx* ctx_ = nullptr;
  double patience_s_ = 0;
  std::vector<int> members_;
  bool renumbered_;  // members_ are not 0, 1, 2 ...
  std::vector<Memory> memory_;
  Enqueued enqueued_{*this};
};

// Returns null if the transport has no one-sided calls, on any rank.
std::unique_ptr<PutChannel> make_put_channel(TransportSession& session, int peer, int lane);

// Exchanges addresses through the bootstrap and connects. Throws Error(join) naming the ranks whose ABI, plugin,
// version, build or options differ, and Error(transport) naming the rank missing at the deadline. Only the session's
// members are compared and connected, but all ranks of the job must call; those without a session call join_without.
void join_and_connect(TransportSession& session, const WorldOptions& options, Bootstrap& bootstrap);
inline void join_without(Bootstrap& bootstrap) { bootstrap.all_gather(""); }

// Returns the seconds that a rank waits for the next one to connect: `deadline_s`, or more if over 16 ranks share a
// core, because each answers only in its time slice.
double connecting_deadline_s(double deadline_s, double cores_per_rank);

// Returns the GNU build id, in hex, of the object that contains this address; "" if it was linked without one.
std::string build_id_of(const void* address);

}  // namespace prun
