// Node 0 serves all connections in one poll loop. Each has kHandshake to prove itself; strangers are counted and
// dropped.
#include "launch/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "launch/coordination.h"
#include "launch/handshake.h"
#include "launch/tcp.h"

namespace prun {
namespace {

constexpr auto kHandshake = std::chrono::seconds(2);
constexpr auto kRetry = std::chrono::milliseconds(100);
constexpr size_t kMostGuests = 64;  // connections that have not proved themselves

int milliseconds_until(Clock::time_point when) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 1000));
}

HostPort trusted_address(const LaunchOptions& options) {
  HostPort at = resolve(options.rendezvous);
  if (!at.loopback && options.secret.empty())
    throw usage_error(
        fmt::format("--rendezvous {} is not a loopback address: give all nodes the same secret "
                    "(--secret-file FILE, or PRUN_SECRET)",
                    options.rendezvous));
  return at;
}

struct Guest {
  Fd fd;
  Clock::time_point deadline;
  Challenge challenge;
  std::string received;
};

class Reception {
 public:
  Reception(const LaunchOptions& options, const std::string& host, LaunchObserver& observer)
      : options_(options),
        observer_(observer),
        listener_(listen_on(trusted_address(options))),
        members_(static_cast<size_t>(options.nnodes - 1)),
        places_(static_cast<size_t>(options.nnodes)) {
    places_[0] = {host, 0, options.nproc};
  }

  JoinedNodes run();

 private:
  void wait_for_events(Clock::time_point until);
  void accept_guests();
  bool hear(Guest& guest);  // false: done with this connection
  void admit(Guest& guest, const Hello& hello);
  void stranger(int fd, const char* why);
  std::string missing() const;
  int ranks() const {  // of the nodes that have joined
    int sum = places_[0].ranks;
    for (size_t i = 0; i < members_.size(); ++i)
      if (members_[i]) sum += places_[i + 1].ranks;
    return sum;
  }
  int joined() const {
    return 1 + static_cast<int>(std::count_if(members_.begin(), members_.end(), [](const Fd& fd) { return bool(fd); }));
  }

  const LaunchOptions& options_;
  LaunchObserver& observer_;
  Fd listener_;
  std::vector<Guest> guests_;
  std::vector<Fd> members_;
  std::vector<NodePlace> places_;
  int strangers_ = 0;
  std::string last_stranger_;
};

JoinedNodes Reception::run() {
  Clock::time_point deadline = after(Clock::now(), options_.join_timeout_s);
  Clock::time_point next_report = after(Clock::now(), options_.join_report_s);
  const Clock::time_point patience = after(Clock::now(), options_.patience_s);
  while (joined() < options_.nnodes) {
    Clock::time_point now = Clock::now();
    const bool enough = options_.min_ranks > 0 && ranks() >= options_.min_ranks;
    if (enough && now >= std::min(patience, deadline)) break;
    std::string turned_away =
        strangers_ ? fmt::format("; {} turned away, the last: {}", strangers_, last_stranger_) : "";
    if (now >= deadline)
      throw Error(Exit::join,
                  fmt::format("{}/{} nodes joined at {} within {}; missing {}{}", joined(), options_.nnodes,
                              options_.rendezvous, human_seconds(options_.join_timeout_s), missing(), turned_away));
    if (now >= next_report) {
      observer_.message(fmt::format("prun: {}/{} nodes joined at {}; missing {}{}\n", joined(), options_.nnodes,
                                    options_.rendezvous, missing(), turned_away));
      next_report = after(next_report, options_.join_report_s);
    }
    wait_for_events(std::min({deadline, next_report, enough ? patience : deadline}));
  }
  if (joined() < options_.nnodes)
    observer_.message(fmt::format("prun: {}/{} nodes joined at {}: going on without {}\n", joined(), options_.nnodes,
                                  options_.rendezvous, missing()));
  JoinedNodes result;
  int first = 0;
  for (size_t node = 0; node < places_.size(); ++node) {
    NodePlace& place = places_[node];
    if (node > 0 && !members_[node - 1]) place = {};
    place.first_rank = first;
    first += place.ranks;
  }
  result.topology = {0, places_};
  for (Fd& member : members_) result.members.emplace_back(std::move(member));
  return result;
}

void Reception::wait_for_events(Clock::time_point until) {
  std::vector<pollfd> polls;
  polls.push_back({guests_.size() < kMostGuests ? listener_.get() : -1, POLLIN, 0});
  for (const Fd& member : members_) polls.push_back({member.get(), POLLIN, 0});
  for (const Guest& guest : guests_) {
    polls.push_back({guest.fd.get(), POLLIN, 0});
    until = std::min(until, guest.deadline);
  }
  if (poll(polls.data(), polls.size(), milliseconds_until(until)) < 0) return;
  size_t at = 1;
  for (Fd& member : members_)  // members send nothing before the job: this one has closed, and may join again
    if (polls[at++].revents) member.reset();
  Clock::time_point now = Clock::now();
  std::vector<Guest> staying;
  for (Guest& guest : guests_) {
    bool stays = !polls[at++].revents || hear(guest);
    if (stays && now >= guest.deadline) stranger(guest.fd.get(), "said nothing in time"), stays = false;
    if (stays) staying.push_back(std::move(guest));
  }
  guests_ = std::move(staying);
  if (polls[0].revents) accept_guests();
}

void Reception::accept_guests() {
  while (guests_.size() < kMostGuests) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    set_tcp_options(fd.get());
    Guest guest{std::move(fd), Clock::now() + kHandshake, make_challenge(), ""};
    std::string_view challenge = bytes_of(guest.challenge);
    send(guest.fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL);  // fits into any socket's buffer
    guests_.push_back(std::move(guest));
  }
}

bool Reception::hear(Guest& guest) {
  char bytes[sizeof(Hello)];
  ssize_t got = recv(guest.fd.get(), bytes, sizeof bytes - guest.received.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    stranger(guest.fd.get(), "left without a hello");
    return false;
  }
  guest.received.append(bytes, static_cast<size_t>(got));
  if (guest.received.size() < sizeof(Hello)) return true;
  Hello hello;
  std::memcpy(&hello, guest.received.data(), sizeof hello);
  admit(guest, hello);
  return false;
}

void Reception::admit(Guest& guest, const Hello& hello) {
  Admission status = check_hello(options_.secret, guest.challenge, hello);
  uint32_t nnodes = static_cast<uint32_t>(options_.nnodes);
  if (status == Admission::accepted) {
    if (hello.nnodes != nnodes)
      status = Admission::other_nnodes;
    else if (hello.node < 1 || hello.node >= nnodes || hello.nproc < 1)
      status = Admission::bad_node;
    else if (members_[hello.node - 1])
      status = Admission::node_taken;
  }
  Answer answer = make_answer(options_.secret, guest.challenge, hello, status, options_.nnodes);
  std::string_view bytes = bytes_of(answer);
  send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  static constexpr const char* kWhy[] = {
      // by Admission
      "",
      "has another secret",
      "is no prun of this version",
      "has another --nnodes",
      "has a --node-rank that has joined already",
      "has a --node-rank that is not one",
  };
  if (status != Admission::accepted) return stranger(guest.fd.get(), kWhy[static_cast<int>(status)]);
  places_[hello.node] = {std::string(hello.host, strnlen(hello.host, sizeof hello.host)), 0,
                         static_cast<int>(hello.nproc)};
  members_[hello.node - 1] = std::move(guest.fd);
}

void Reception::stranger(int fd, const char* why) {
  ++strangers_;
  last_stranger_ = fmt::format("{} {}", peer_name(fd), why);
}

std::string Reception::missing() const {
  std::vector<std::string> nodes;
  for (size_t i = 0; i < members_.size(); ++i)
    if (!members_[i]) nodes.push_back(fmt::format("node {}", i + 1));
  return join(nodes, ", ");
}

bool receive_all(int fd, void* to, size_t bytes) {
  return recv(fd, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

void set_receive_limit(int fd, std::chrono::seconds limit) {
  timeval time{limit.count(), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

// False and `why` when it is worth another attempt.
bool introduce(int fd, const LaunchOptions& options, const std::string& host, std::string* why) {
  const std::string& at = options.rendezvous;
  set_receive_limit(fd, kHandshake);
  Challenge challenge;
  *why = "it closes the connection, or says nothing";
  if (!receive_all(fd, &challenge, sizeof challenge)) return false;
  if (!is_prun(challenge.magic)) throw Error(Exit::join, fmt::format("what listens on {} is not prun", at));
  if (challenge.version != kRendezvousVersion)
    throw Error(Exit::join,
                fmt::format("node 0 at {} speaks version {} of the rendezvous, this node version {}: install "
                            "the same prun",
                            at, challenge.version, kRendezvousVersion));
  Hello hello = make_hello(options.secret, challenge, options.node_rank, options.nnodes, options.nproc, host);
  std::string_view bytes = bytes_of(hello);
  Answer answer;
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) return false;
  if (!receive_all(fd, &answer, sizeof answer)) return false;
  Admission status = static_cast<Admission>(answer.status);
  bool unsigned_answer = status == Admission::wrong_secret || status == Admission::other_version;
  if (unsigned_answer || !answer_is_genuine(options.secret, challenge, hello, answer))
    throw Error(Exit::join,
                fmt::format("node 0 at {} has another secret than this node (--secret-file, PRUN_SECRET)", at));
  if (status == Admission::other_nnodes)
    throw usage_error(fmt::format("--nnodes is {} here and {} on node 0", options.nnodes, answer.nnodes));
  if (status == Admission::node_taken)
    throw usage_error(
        fmt::format("node {} has joined {} already: each node needs its own --node-rank", options.node_rank, at));
  if (status != Admission::accepted)
    throw Error(Exit::join, fmt::format("node 0 at {} refuses node {}", at, options.node_rank));
  set_receive_limit(fd, std::chrono::seconds(0));
  return true;
}

}  // namespace

JoinedNodes gather_nodes(const LaunchOptions& options, const std::string& host, LaunchObserver& observer) {
  return Reception(options, host, observer).run();
}

Fd join_head(const LaunchOptions& options, const std::string& host, LaunchObserver& observer) {
  HostPort at = trusted_address(options);
  Clock::time_point deadline = after(Clock::now(), options.join_timeout_s);
  Clock::time_point next_report = after(Clock::now(), options.join_report_s);
  std::string why;
  for (;;) {
    Fd fd = connect_to(at, kHandshake, &why);
    if (fd && introduce(fd.get(), options, host, &why)) return fd;
    Clock::time_point now = Clock::now();
    if (now + kRetry >= deadline)
      throw Error(Exit::join, fmt::format("node 0 does not answer at {} within {}: {}", options.rendezvous,
                                          human_seconds(options.join_timeout_s), why));
    if (now >= next_report) {
      observer.message(fmt::format("prun: waiting for node 0 at {}: {}\n", options.rendezvous, why));
      next_report = after(next_report, options.join_report_s);
    }
    poll(nullptr, 0, static_cast<int>(kRetry.count()));
  }
}

}  // namespace prun
