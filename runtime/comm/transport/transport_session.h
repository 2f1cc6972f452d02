// An opened transport, as the rest of comm uses it: requests that end in time or throw, naming who is to blame.
//
// A link may connect some ranks only, those of a host, say. The plugin then sees a world of its own, in which ranks are
// numbered from 0; a link takes and gives the job's numbers, also in place of the "#N" of messages.
//
// Surprising fact: a peer that vanishes is seldom the news itself; it mostly means that the job is ending. So a lost
// peer is reported only after the launcher had a moment to say why (kAbortGrace).
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"
#include "comm/transport/enqueued.h"
#include "comm/transport/plugin.h"
#include "comm/transport/watchdog.h"

namespace prun {

// What a result says: its message, or else the status in words.
std::string status_text(prun_status status, const prun_result& result);
// A plugin's message with numbers[N] for each "#N" (prun_result), which it also appends to `named`. Where there is no
// such rank the text stays as it is.
std::string fill_ranks(std::string_view text, const std::vector<int>& numbers, std::vector<int>* named = nullptr);

class Link {
 public:
  // Opens the context. `members`: the ranks that it connects, this one among them; none: all. `options` are the job's.
  // Throws Error(transport), or usage_error for options that the plugin refuses.
  Link(Plugin plugin, const WorldOptions& options, std::vector<int> members = {});
  ~Link();  // closes; every request has ended
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const prun_transport& table() const { return plugin_.table; }
  prun_ctx* ctx() const { return ctx_; }
  const Plugin& plugin() const { return plugin_; }
  double deadline_s() const { return deadline_s_; }
  int rank() const { return rank_; }
  const std::vector<int>& members() const { return members_; }
  int own_rank(int rank) const;  // the plugin's number of this rank of the job; -1: it is no member
  // Waits so much longer than the deadline that it reports: so that whoever waits for the culprit itself tells first.
  void be_patient(double seconds) { patience_s_ = seconds; }

  // Zeroed memory of the transport (of a device: as it is), or null when it has none to offer.
  void* allocate(int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  // Lets the transport know memory that is not its own, where it wants to; it must outlive the link.
  void adopt(void* ptr, int64_t bytes, prun_mem_kind kind = PRUN_MEM_HOST);
  void* handle_of(const void* ptr) const;  // of allocate() and adopt(); null for other memory

  // prun_transport's batch with peers of the job; they and the handles are written into `ops`. With PRUN_OK there is a
  // request.
  prun_status batch(std::vector<prun_p2p>& ops, prun_req** req, prun_result& result);
  prun_status test(prun_req* req, prun_result& result) {
    InPlugin inside("test");
    return told(table().test(ctx_, req, &result), result, "test");
  }
  // After any call of the table: the culprit becomes the job's rank. A status that there is not, or a culprit, become
  // an error that says so, in the name of `function`. Returns the status.
  prun_status told(prun_status status, prun_result& result, const char* function = "it") const;
  // The message, or else the status, in words; ranks are the job's.
  std::string text_of(prun_status status, const prun_result& result) const {
    return fill_ranks(status_text(status, result), members_);
  }
  // Waits for a request. `bytes` allow for slow links (kSlowestBytesPerSecond) on top of the deadline. On an error the
  // status is returned with its result; a deadline is PRUN_AGAIN.
  prun_status wait(prun_req* req, int64_t bytes, prun_result& result);
  // Ends requests that nobody will wait for any more: aborts the context and sees them out.
  void drain(const std::vector<prun_req*>& requests);
  void abort();  // any thread
  Enqueued& enqueued() { return enqueued_; }

  // Throws what a failed status means to a user; never returns. PRUN_AGAIN (a deadline) and a mismatch are for the
  // caller, who knows more, to refine. `doing` opens the sentence.
  [[noreturn]] void fail(prun_status status, const prun_result& result, const std::string& doing) const;

  int next_lane = 1;  // that no communicator of this rank uses; 0 is where members agree on theirs

 private:
  struct Memory {
    char* begin;
    int64_t bytes;
    void* handle;
  };
  Plugin plugin_;
  prun_ctx* ctx_ = nullptr;
  double deadline_s_, patience_s_ = 0;
  int rank_;
  std::vector<int> members_;
  bool renumbered_;  // members_ are not 0, 1, 2 ...
  std::vector<Memory> memory_;
  Enqueued enqueued_{*this};
};

// How long a request may take: the deadline, patience, and what large messages need on slow links.
double limit_s(double deadline_s, int64_t bytes);
inline prun_result empty_result() { return prun_result{.size = sizeof(prun_result), .culprit = -1, .message = {}}; }

}  // namespace prun
