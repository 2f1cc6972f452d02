// A node that gets no answer, or is rejected without a reason, retries until its time is up.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>

#include "base/text.h"
#include "launch/absent_nodes.h"
#include "launch/coordination.h"
#include "launch/handshake.h"
#include "launch/launcher_process.h"
#include "launch/meeting.h"
#include "launch/rendezvous.h"

namespace prun {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(100);

bool receive_all(int fd, void* to, size_t bytes) {
  return recv(fd, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

void set_receive_limit(int fd, std::chrono::seconds limit) {
  timeval time{limit.count(), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

// Returns false and `why` if a retry makes sense; otherwise the connection moves to `joined`.
bool introduce(Fd& connection, const LaunchOptions& options, const Meeting& meeting, const std::string& host,
               JoinedHead& joined, std::string* why) {
  const int fd = connection.get();
  const std::string& at = options.rendezvous;
  set_receive_limit(fd, kHandshake);
  Challenge challenge;
  *why = "it closes the connection or does not answer";
  if (!receive_all(fd, &challenge, sizeof challenge)) return false;
  if (!is_prun(challenge.magic)) throw Error(Exit::join, fmt::format("the program that listens on {} is not prun", at));
  if (challenge.version != kRendezvousVersion)
    throw Error(Exit::join,
                fmt::format("node 0 at {} speaks version {} of the rendezvous, this node version {}: install "
                            "the same prun",
                            at, challenge.version, kRendezvousVersion));
  const std::optional<std::string> secret = meeting.secret(why);
  if (!secret) return false;
  Hello hello = make_hello(*secret, challenge, options.node_rank, options.nnodes, options.nproc, host, options.encrypt);
  std::string_view bytes = bytes_of(hello);
  Answer answer;
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) return false;
  if (!receive_all(fd, &answer, sizeof answer)) return false;
  Admission status = static_cast<Admission>(answer.status);
  bool unsigned_answer = status == Admission::wrong_secret || status == Admission::other_version;
  if (unsigned_answer && !meeting.secret_is_given()) {
    *why = "its secret differs from that of its file";  // perhaps written a moment ago
    return false;
  }
  if (unsigned_answer || !answer_is_genuine(*secret, challenge, hello, answer))
    throw Error(Exit::join,
                fmt::format("node 0 at {} has another secret than this node (--secret-file, PRUN_SECRET)", at));
  if (status == Admission::other_nnodes)
    throw usage_error(fmt::format("--nnodes is {} here and {} on node 0", options.nnodes, answer.nnodes));
  if (status == Admission::node_taken)
    throw usage_error(
        fmt::format("node {} has joined {} already: each node needs its own --node-rank", options.node_rank, at));
  if (status == Admission::other_encryption)
    throw usage_error(fmt::format("this node ({}) has {}--encrypt and node 0 at {} has {}: give all nodes the same",
                                  options.node_rank, options.encrypt ? "" : "no ", at, options.encrypt ? "not" : "it"));
  if (status != Admission::accepted)
    throw Error(Exit::join, fmt::format("node 0 at {} refuses node {}", at, options.node_rank));
  set_receive_limit(fd, std::chrono::seconds(0));
  joined.secret = *secret;
  if (options.encrypt && !on_one_host(options))
    joined.node0 =
        Channel(std::move(connection), encryption_key(*secret, challenge, hello), sdk::TlsStream::Side::client);
  else
    joined.node0 = Channel(std::move(connection), frame_key(*secret, challenge, hello, false),
                           frame_key(*secret, challenge, hello, true));
  joined.node0.send(FrameKind::inventory, -1, options.inventory);
  joined.node0.send(FrameKind::settings, -1, pack(options.settings));
  return true;
}

}  // namespace

JoinedHead join_head(const LaunchOptions& options, const std::string& host, LaunchObserver& observer) {
  Meeting meeting(options);
  JoinedHead joined;
  Clock::time_point deadline = after(Clock::now(), options.join_timeout_s);
  Clock::time_point next_report = after(Clock::now(), options.join_report_s);
  std::string why;
  for (;;) {
    require_launcher();
    Fd connection = meeting.connect(kHandshake, &why);
    if (connection && !meeting.admits(connection.get()))
      why = "a process of another user listens";
    else if (connection && introduce(connection, options, meeting, host, joined, &why))
      return joined;
    Clock::time_point now = Clock::now();
    if (now + kRetry >= deadline)
      throw Error(Exit::join,
                  fmt::format("node 0 does not answer at {} within {}: {}{}", options.rendezvous,
                              human_seconds(options.join_timeout_s), why, why_nodes_may_be_absent(options)));
    if (now >= next_report && !(options.silent && options.node_rank > 1)) {
      observer.message(fmt::format("prun: waiting for node 0 at {}: {}\n", options.rendezvous, why));
      next_report = after(next_report, options.join_report_s);
    }
    poll(nullptr, 0, static_cast<int>(kRetry.count()));
  }
}

}  // namespace prun
