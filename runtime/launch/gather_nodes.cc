// Node 0 serves all connections in one poll loop. Each has kHandshake to prove itself; strangers are counted and
// dropped.
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/text.h"
#include "launch/coordination.h"
#include "launch/handshake.h"
#include "launch/meeting.h"
#include "launch/rendezvous.h"

namespace prun {
namespace {

constexpr ptrdiff_t kMostGuests = 256;  // connections that have not proved themselves
constexpr int kAcceptAtOnce = 64;

int milliseconds_until(Clock::time_point when) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 1000));
}

struct Guest {
  Fd fd;
  Clock::time_point deadline;
  Challenge challenge;
  std::string received;
};

struct Newcomer {
  Channel channel;
  std::optional<std::vector<NodeSetting>> settings;  // it is in once it has sent them
};

bool is_in(const Newcomer& member) { return member.settings.has_value(); }

class Reception {
 public:
  Reception(const LaunchOptions& options, const std::string& host, LaunchObserver& observer)
      : options_(options),
        observer_(observer),
        meeting_(options),
        listener_(meeting_.listen()),
        members_(static_cast<size_t>(options.nnodes - 1)),
        places_(static_cast<size_t>(options.nnodes)) {
    places_[0] = {host, 0, options.nproc};
  }

  JoinedNodes run();

 private:
  void wait_for_events(Clock::time_point until);
  void accept_guests();
  void listen_to(Newcomer& member);
  bool hear(Guest& guest);  // false: done with this connection
  void admit(Guest& guest, const Hello& hello);
  void stranger(int fd, const char* why);
  void compare_settings();
  std::string missing() const;
  std::string secret() const { return *meeting_.secret(nullptr); }
  int ranks() const {  // of the nodes that have joined
    int sum = places_[0].ranks;
    for (size_t i = 0; i < members_.size(); ++i)
      if (is_in(members_[i])) sum += places_[i + 1].ranks;
    return sum;
  }
  int joined() const { return 1 + static_cast<int>(std::count_if(members_.begin(), members_.end(), is_in)); }

  const LaunchOptions& options_;
  LaunchObserver& observer_;
  Meeting meeting_;
  Fd listener_;
  std::vector<Guest> guests_;
  std::vector<Newcomer> members_;
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
  compare_settings();
  JoinedNodes result;
  result.secret = secret();
  int first = 0;
  for (size_t node = 0; node < places_.size(); ++node) {
    NodePlace& place = places_[node];
    if (node > 0 && !is_in(members_[node - 1])) place = {};
    place.first_rank = first;
    first += place.ranks;
  }
  result.topology = {0, places_};
  for (Newcomer& member : members_) result.members.push_back(std::move(member.channel));
  return result;
}

void Reception::wait_for_events(Clock::time_point until) {
  std::vector<pollfd> polls;
  polls.push_back({listener_.get(), POLLIN, 0});
  for (const Newcomer& member : members_)
    polls.push_back({member.channel.open() ? member.channel.fd() : -1, POLLIN, 0});
  for (const Guest& guest : guests_) {
    polls.push_back({guest.fd.get(), POLLIN, 0});
    until = std::min(until, guest.deadline);
  }
  if (poll(polls.data(), polls.size(), milliseconds_until(until)) < 0) return;
  size_t at = 1;
  for (Newcomer& member : members_)
    if (polls[at++].revents) listen_to(member);
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

// Whoever opens connections faster than nodes come must not keep them out: the oldest guests make room.
void Reception::accept_guests() {
  for (int count = 0; count < kAcceptAtOnce; ++count) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    if (!meeting_.admits(fd.get())) {
      stranger(fd.get(), "is a process of another user");
      continue;
    }
    set_tcp_options(fd.get(), options_.link_timeout_s);
    Guest guest{std::move(fd), Clock::now() + kHandshake, make_challenge(), ""};
    std::string_view challenge = bytes_of(guest.challenge);
    send(guest.fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL);  // fits into any socket's buffer
    guests_.push_back(std::move(guest));
  }
  if (guests_.size() <= kMostGuests) return;
  const auto staying = guests_.end() - kMostGuests;
  for (auto guest = guests_.begin(); guest != staying; ++guest)
    stranger(guest->fd.get(), "was silent while others came");
  guests_.erase(guests_.begin(), staying);
}

// Before the job a member sends its settings only. One that has closed may join again.
void Reception::listen_to(Newcomer& member) {
  std::vector<Frame> frames;
  bool stays = member.channel.receive(frames);
  for (const Frame& frame : frames) try {
      if (frame.kind == FrameKind::settings) member.settings = unpack<std::vector<NodeSetting>>(frame.payload);
    } catch (const Error&) {
      stays = false;
    }
  if (!stays) member = {};
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
  Admission status = check_hello(secret(), guest.challenge, hello);
  uint32_t nnodes = static_cast<uint32_t>(options_.nnodes);
  if (status == Admission::accepted) {
    if (hello.nnodes != nnodes)
      status = Admission::other_nnodes;
    else if (hello.node < 1 || hello.node >= nnodes || hello.nproc < 1)
      status = Admission::bad_node;
    else if (members_[hello.node - 1].channel.open())
      status = Admission::node_taken;
  }
  Answer answer = make_answer(secret(), guest.challenge, hello, status, options_.nnodes);
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
  members_[hello.node - 1].channel = Channel(std::move(guest.fd), frame_key(secret(), guest.challenge, hello, true),
                                             frame_key(secret(), guest.challenge, hello, false));
}

void Reception::stranger(int fd, const char* why) {
  ++strangers_;
  last_stranger_ = fmt::format("{} {}", peer_name(fd), why);
}

std::string Reception::missing() const {
  std::vector<std::string> nodes;
  for (size_t i = 0; i < members_.size(); ++i)
    if (!is_in(members_[i])) nodes.push_back(fmt::format("node {}", i + 1));
  return join(nodes, ", ");
}

// Other nodes run what node 0 gives them: what they were told themselves must be the same.
void Reception::compare_settings() {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (!is_in(members_[i])) continue;
    const std::string differs =
        difference(options_.settings, *members_[i].settings, fmt::format("node {} ({})", i + 1, places_[i + 1].host));
    if (differs.empty()) continue;
    JobOffer offer;
    offer.error_code = static_cast<int>(Exit::usage);
    offer.error = differs;
    for (Newcomer& member : members_) {
      member.channel.send(FrameKind::job, -1, pack(offer));
      keep_until_exit(std::move(member.channel));
    }
    throw usage_error(differs);
  }
}

}  // namespace

JoinedNodes gather_nodes(const LaunchOptions& options, const std::string& host, LaunchObserver& observer) {
  return Reception(options, host, observer).run();
}

}  // namespace prun
