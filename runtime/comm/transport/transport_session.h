// An opened transport, as the rest of comm uses it: requests that end in time or throw, naming who is to blame.
//
// A session may connect some ranks only, those of a host, say. The plugin then sees a world of its own, in which ranks
// are numbered from 0; a session takes and gives the job's numbers, also in place of the "#N" of messages.
//
// Surprising fact: a peer that vanishes is seldom the news itself; it mostly means that the job is ending. So a lost
// peer is reported only after the launcher had a moment to say why (kAbortGrace).
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
// What a result says: its message, or else the status in words.
std::string status_text(prun_status status, const prun_result& result);
// A plugin's message with numbers[N] for each "#N" (prun_result), which it also appends to `named`. Where there is no
// such rank the text stays as it is.
std::string fill_ranks(std::string_view text, const std::vector<int>& numbers, std::vector<int>* named = nullptr);
// How long a request of so many bytes may take: the deadline, and what large messages need on slow networks.
double limit_s(double deadline_s, int64_t bytes);

// Threads as for prun_transport: opened, connected and closed by one; batch, test, wait and abort by any.
class TransportSession {
 public:
  // Opens the context. `members`: the ranks that it connects, this one among them; none: all. `options` are the job's
  // and outlive the session. Throws Error(transport), or usage_error for options that the plugin refuses.
  TransportSession(Plugin plugin, const WorldOptions& options, std::vector<int> members = {});
  ~TransportSession();  // closes; every request has ended
  TransportSession(const TransportSession&) = delete;
  TransportSession& operator=(const TransportSession&) = delete;

  const prun_transport& table() const { return plugin_.table; }
  prun_ctx* ctx() const { return ctx_; }
  const Plugin& plugin() const { return plugin_; }
  const WorldOptions& options() const { return options_; }
  double deadline_s() const { return options_.deadline_s; }
  const std::vector<int>& members() const { return members_; }
  int plugin_rank(int rank) const;  // the plugin's number of this rank of the job; -1: it is no member
  // Reports deadlines so much later: whoever waits for the culprit itself tells first.
  void set_patience(double seconds) { patience_s_ = seconds; }

  // Zeroed memory of the transport (of a device: as it is), or null when it has none to offer.
  void* allocate(int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  // Lets the transport register memory that is not its own, where it wants to; it must outlive the session.
  void adopt(void* ptr, int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  void* handle_of(const void* ptr) const;  // of allocate() and adopt(); null for other memory

  // Calls a function of the table whose last parameter is the result, in the sight of the watchdog. The result's
  // culprit becomes the job's rank; a status or a culprit that does not exist becomes an error in the name of the
  // function.
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
  // prun_transport's batch with peers of the job; they and the handles are written into `ops`. With PRUN_OK there is a
  // request.
  prun_status batch(std::vector<prun_p2p>& ops, prun_req** req, prun_result& result);
  // Waits for a request, limit_s and the patience long. PRUN_AGAIN: the limit has passed, and the request lives on.
  prun_status wait(prun_req* req, int64_t bytes, prun_result& result);
  // The same, but what has not ended by then is drained.
  prun_status finish(prun_req* req, int64_t bytes, prun_result& result);
  // Ends requests that nobody will wait for any more: aborts the context and sees them out.
  void drain(const std::vector<prun_req*>& requests);
  void abort();  // any thread
  Enqueued& enqueued() { return enqueued_; }

  // The message, or else the status, in words; ranks are the job's.
  std::string text_of(prun_status status, const prun_result& result) const {
    return fill_ranks(status_text(status, result), members_);
  }
  // Throws what a failed status means to a user. `doing` opens the sentence.
  [[noreturn]] void fail(prun_status status, const prun_result& result, const std::string& doing) const;
  // Throws that nothing has moved for the deadline; `whom` is waited for.
  [[noreturn]] void fail_late(const std::string& doing, const std::string& whom) const;

  bool connected = false;  // to all its members
  int next_tag = 1;        // that no communicator of this rank uses; on 0 members agree on theirs

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

// Null: the transport has no one-sided calls, on any rank.
std::unique_ptr<PutChannel> make_put_channel(TransportSession& session, int peer, int lane);

// Exchanges addresses through the bootstrap. Throws Error(join) naming the ranks whose ABI, plugin, version, build or
// options differ; then connects, and throws Error(transport) naming who is missing at the deadline.
// Only the session's members are compared and connected, but all ranks of the job must call; those without a session
// call join_without.
void join_and_connect(TransportSession& session, const WorldOptions& options, Bootstrap& bootstrap);
inline void join_without(Bootstrap& bootstrap) { bootstrap.all_gather(""); }

// Seconds that a rank waits for the next one to connect: `deadline_s`, and longer where more than 16 ranks share a
// core, since each answers only in its turn.
double connecting_deadline_s(double deadline_s, double cores_per_rank);

// The GNU build id of the object that holds this address, in hex; "" if it was linked without one.
std::string build_id_of(const void* address);

}  // namespace prun
