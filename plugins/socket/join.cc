// The state of joining: dials under way, connections accepted but not yet believed, who is missing.
#include "join.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "connection.h"
#include "tune.h"

namespace prun_socket {
namespace {

constexpr auto kHandshakeDeadline = std::chrono::seconds(2);
constexpr auto kDialAgain = std::chrono::milliseconds(20);
constexpr size_t kStrangersAtOnce = 64;  // beyond those that are expected

// Descriptors may run out for a moment while strangers hold some.
bool passes_by_itself(int error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Join::Join(const Identity& identity, const Options& options, Listeners listeners, Poller& poller, Matcher& matcher)
    : identity_(identity), options_(options), listeners_(std::move(listeners)), poller_(poller), matcher_(matcher) {
  const auto watch = [&](Listener& listener, const Descriptor& fd, bool tcp) {
    listener.join = this;
    listener.fd = fd.get();
    listener.tcp = tcp;
    if (fd) poller_.add(fd.get(), &listener, EPOLLIN);
  };
  watch(unix_listener_, listeners_.unix_socket, false);
  watch(tcp_listener_, listeners_.tcp_socket, true);
}

Join::~Join() {
  for (const Listener* listener : {&unix_listener_, &tcp_listener_})
    if (listener->fd >= 0) poller_.remove(listener->fd);
}

void Join::read_addresses(const void* const* blobs, const size_t* bytes) {
  const Address& ours = listeners_.address;
  for (int r = 0; r < identity_.ranks; ++r) {
    Address theirs = r == identity_.rank ? ours : Address::decode(blobs[r], bytes[r], r);
    if (theirs.version != ours.version)
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} has version {} of the socket plugin, rank #{} has {}", r,
                                theirs.version.data(), identity_.rank, ours.version.data())};
    if (theirs.options != ours.options)
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} has other socket options than rank #{}: {} and {}", r, identity_.rank,
                                theirs.options.data(), ours.options.data())};
    addresses_.push_back(theirs);
    if (r == identity_.rank) continue;
    const bool near = options_.use_unix && theirs.host == ours.host;
    if (!near && theirs.family == 0)
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} is on another host but was told that all ranks share one", r)};
    if (!near && theirs.loopback && !(theirs.host == ours.host))
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} is on another host but listens on loopback only: give the "
                                "network interface to use",
                                r)};
    matcher_.peer(r).connections.resize(options_.connections);
    for (int index = 0; index < options_.connections && r < identity_.rank; ++index) dials_.push_back({r, index});
  }
}

bool Join::step(const void* const* blobs, const size_t* bytes) {
  if (addresses_.empty()) read_addresses(blobs, bytes);
  for (Dial& each : dials_)
    if (!each.connected && !each.handshake && Clock::now() >= each.next) dial(each);
  for (int turn = 0; turn < 16 && poller_.wait(0); ++turn) poller_.dispatch();
  for (Dial& each : dials_)
    if (each.handshake) look_after(each);
  look_after_accepted();
  return over_unix_ + over_tcp_ == (identity_.ranks - 1) * options_.connections;
}

void Join::dial(Dial& dial) {
  const Address& to = addresses_[dial.peer];
  const bool tcp = !(options_.use_unix && to.host == listeners_.address.host);
  dial.next = Clock::now() + kDialAgain;
  socklen_t length = 0;
  sockaddr_storage address{};
  if (tcp) {
    address = to.tcp(&length);
  } else {
    const sockaddr_un name = unix_address(to, &length);
    std::memcpy(&address, &name, length);
  }
  Descriptor fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw system_failure("socket", errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 && errno != EINPROGRESS) {
    if (errno == ECONNREFUSED)
      throw Failure{
          PRUN_EPEER, dial.peer,
          fmt::format("rank #{} no longer listens{}", dial.peer, tcp ? " on " + to.tcp_text() : std::string())};
    dial.trouble = std::strerror(errno);
    return;
  }
  dial.handshake = std::make_unique<Handshake>(std::move(fd), tcp, identity_, dial.peer, dial.index, poller_);
  dial.handshake->on_event(0);
}

void Join::look_after(Dial& dial) {
  Handshake& handshake = *dial.handshake;
  if (handshake.state() == Handshake::State::running) return;
  if (handshake.state() == Handshake::State::done) {
    establish(handshake);
    dial.connected = true;
  } else {
    dial.trouble = handshake.why_refused();
    if (handshake.error() == ECONNREFUSED)
      throw Failure{PRUN_EPEER, dial.peer,
                    fmt::format("rank #{} no longer listens on {}", dial.peer, addresses_[dial.peer].tcp_text())};
  }
  dial.handshake.reset();
}

void Join::accept_all(Listener& listener) {
  const size_t cap = kStrangersAtOnce + static_cast<size_t>(identity_.ranks) * options_.connections;
  for (;;) {
    Descriptor fd(::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (passes_by_itself(errno)) return;
      throw system_failure("accept", errno);
    }
    if (!listener.tcp) {
      ucred who{};
      socklen_t length = sizeof who;
      const bool known = ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) == 0;
      if (!known || (who.uid != ::geteuid() && who.uid != 0)) {
        ++strangers_;
        continue;
      }
    }
    accepted_.push_back(std::make_unique<Handshake>(std::move(fd), listener.tcp, identity_, -1, -1, poller_));
    if (accepted_.size() > cap) return;  // the rest waits in the backlog; look_after_accepted makes room
  }
}

void Join::look_after_accepted() {
  const size_t cap = kStrangersAtOnce + static_cast<size_t>(identity_.ranks) * options_.connections;
  const auto now = Clock::now();
  for (size_t i = 0; i < accepted_.size();) {
    Handshake& handshake = *accepted_[i];
    if (handshake.state() == Handshake::State::done && handshake.index() < options_.connections) {
      establish(handshake);
    } else if (handshake.state() != Handshake::State::running || now - handshake.begun() > kHandshakeDeadline ||
               accepted_.size() > cap) {
      ++strangers_;
    } else {
      ++i;
      continue;
    }
    accepted_.erase(accepted_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Join::establish(Handshake& handshake) {
  Peer& peer = matcher_.peer(handshake.peer());
  std::unique_ptr<Connection>& slot = peer.connections[handshake.index()];
  if (slot) {  // it lost its first connection before it knew that it was in, and came again
    if (slot->open()) slot->abandon({PRUN_EPEER, peer.rank, "replaced"});
    --(slot->tcp() ? over_tcp_ : over_unix_);
    peer.gone = {};
  }
  const bool tcp = handshake.tcp();
  Descriptor fd = handshake.release();
  if (tcp) {
    congestion_ = tune_tcp(fd.get(), options_);
  } else {
    tune_unix(fd.get(), options_);
  }
  slot = std::make_unique<Connection>(std::move(fd), tcp, handshake.index() == 0, tcp && options_.tcp_crc,
                                      options_.chunk, peer, matcher_, poller_);
  ++(tcp ? over_tcp_ : over_unix_);
}

Failure Join::missing() const {
  constexpr int kNamed = 16;
  std::string names;
  int missing = 0, first = -1;
  for (int r = 0; r < identity_.ranks; ++r) {
    const auto& connections = matcher_.peer(r).connections;
    if (std::all_of(connections.begin(), connections.end(), [](const auto& c) { return c != nullptr; })) continue;
    if (missing++ == 0) first = r;
    if (missing > kNamed) continue;
    names += fmt::format("{}#{}", missing == 1 ? "" : ", ", r);
    if (!addresses_.empty() && !(addresses_[r].host == listeners_.address.host))
      names += " at " + addresses_[r].tcp_text();
    const auto dial = std::find_if(dials_.begin(), dials_.end(), [&](const Dial& d) { return d.peer == r; });
    if (dial != dials_.end() && !dial->trouble.empty()) names += fmt::format(" ({})", dial->trouble);
  }
  if (missing > kNamed) names += fmt::format(" and {} more", missing - kNamed);
  std::string text = fmt::format("connected to {} of {} peers; missing: rank {}", identity_.ranks - 1 - missing,
                                 identity_.ranks - 1, names);
  if (strangers_ > 0) text += fmt::format("; strangers turned away: {}", strangers_);
  return {PRUN_AGAIN, first, text};
}

std::string Join::summary() const {
  std::string text =
      fmt::format("socket: rank {} has {} connections over unix, {} over tcp", identity_.rank, over_unix_, over_tcp_);
  if (over_tcp_ > 0)
    text += fmt::format(" (congestion control {}, payload checksums {})", congestion_, options_.tcp_crc ? "on" : "off");
  if (strangers_ > 0) text += fmt::format("; strangers turned away: {}", strangers_);
  return text;
}

}  // namespace prun_socket
