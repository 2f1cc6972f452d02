// An opened transport, as the rest of comm uses it: requests that end in time or throw, naming who is to blame.
//
// Surprising fact: a peer that vanishes is seldom the news itself; it mostly means that the job is ending. So a lost
// peer is reported only after the launcher had a moment to say why (kAbortGrace).
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/plugin.h"

namespace prun {

class Link {
 public:
  // Opens the context. Throws Error(transport).
  Link(Plugin plugin, const WorldOptions& options);
  ~Link();  // closes; every request has ended
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const prun_transport& table() const { return plugin_.table; }
  prun_ctx* ctx() const { return ctx_; }
  const Plugin& plugin() const { return plugin_; }
  double deadline_s() const { return deadline_s_; }
  int rank() const { return rank_; }

  // Zeroed memory of the transport, or null when it has none to offer.
  void* allocate(int64_t bytes);
  void* handle_of(const void* ptr) const;  // of allocate(); null for foreign memory

  // Waits for a request. `bytes` allow for slow links (kSlowestBytesPerSecond) on top of the deadline. On an error the
  // status is returned with its result; a deadline is PRUN_AGAIN.
  prun_status wait(prun_req* req, int64_t bytes, prun_result& result);
  // Ends requests that nobody will wait for any more: aborts the context and sees them out.
  void drain(const std::vector<prun_req*>& requests);
  void abort();  // any thread

  // Throws what a failed status means to a user; never returns. PRUN_AGAIN (a deadline) and a mismatch are for the
  // caller, who knows more, to refine. `doing` opens the sentence.
  [[noreturn]] void fail(prun_status status, const prun_result& result, const std::string& doing) const;

 private:
  struct Memory {
    char* begin;
    int64_t bytes;
    void* handle;
  };
  Plugin plugin_;
  prun_ctx* ctx_ = nullptr;
  double deadline_s_;
  int rank_;
  std::vector<Memory> memory_;
};

inline prun_result empty_result() { return prun_result{.size = sizeof(prun_result), .culprit = -1, .message = {}}; }
std::string status_text(prun_status status, const prun_result& result);

}  // namespace prun
