// Pending dials, accepted connections that are not authenticated yet, and the report of missing ranks.
#include "connector.h"

#include <fmt/format.h>
#include <prun/sdk/local_socket.h>
#include <prun/sdk/tcp_path.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "connection.h"
#include "tune.h"

namespace prun::socket {
namespace {

using State = sdk::Handshake::State;

constexpr auto kEncryptionDeadline = std::chrono::seconds(5);
constexpr auto kDialAgain = std::chrono::milliseconds(20);
constexpr auto kRejected = std::chrono::milliseconds(800);
constexpr size_t kStrangersAtOnce = 64;  // limit of connections beyond the expected ones

// Returns whether the error is transient: unauthenticated connections may exhaust descriptors for a moment.
bool passes_by_itself(int error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

Greeting::Greeting(Descriptor socket, bool tcp, const Identity& identity, int to, int index, Poller& poller)
    : handshake_(std::move(socket), identity, to, index), tcp_(tcp), poller_(poller) {
  poller_.add(handshake_.fd(), this, handshake_.dialler() ? EPOLLOUT : EPOLLIN);
}

Greeting::~Greeting() {
  if (handshake_.fd() >= 0) poller_.remove(handshake_.fd());
}

Descriptor Greeting::release() {
  poller_.remove(handshake_.fd());
  return handshake_.release();
}

void Greeting::on_event(uint32_t) {
  if (handshake_.advance() == State::running)
    poller_.modify(handshake_.fd(), this, handshake_.reads() ? EPOLLIN : EPOLLOUT);
}

Connector::Connector(const Identity& identity, const Options& options, Listeners listeners,
                     std::chrono::seconds silence, Poller& poller, Matcher& matcher)
    : identity_(identity),
      options_(options),
      listeners_(std::move(listeners)),
      silence_(silence),
      poller_(poller),
      matcher_(matcher) {
  const auto watch = [&](Listener& listener, const Descriptor& fd, bool tcp) {
    listener.connector = this;
    listener.fd = fd.get();
    listener.tcp = tcp;
    if (fd) poller_.add(fd.get(), &listener, EPOLLIN);
  };
  watch(unix_listener_, listeners_.unix_socket, false);
  watch(tcp_listener_, listeners_.tcp_socket, true);
}

Connector::~Connector() {
  for (const Listener* listener : {&unix_listener_, &tcp_listener_})
    if (listener->fd >= 0) poller_.remove(listener->fd);
}

void Connector::read_addresses(const sdk::Blobs& blobs) {
  const Address& ours = listeners_.address;
  for (int r = 0; r < identity_.ranks; ++r) {
    Address theirs = r == identity_.rank ? ours : Address::decode(blobs[r], r);
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
    const bool near = options_.use_unix && theirs.host.same_network(ours.host);
    if (!near && theirs.family == 0)
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} is on another host but was told that all ranks share one", r)};
    if (!near && theirs.loopback && !theirs.host.same_network(ours.host))
      throw Failure{PRUN_EINVAL, r,
                    fmt::format("rank #{} is on another host but listens on loopback only: give the "
                                "network interface to use",
                                r)};
    matcher_.peer(r).connections.resize(options_.connections);
    for (int index = 0; index < options_.connections && r < identity_.rank; ++index) dials_.push_back({r, index});
  }
}

bool Connector::step(const sdk::Blobs& blobs) {
  if (addresses_.empty()) read_addresses(blobs);
  for (Dial& each : dials_)
    if (!each.connected && !each.greeting && Clock::now() >= each.next) dial(each);
  for (int turn = 0; turn < 16 && poller_.wait(0); ++turn) poller_.dispatch();
  for (Dial& each : dials_)
    if (each.greeting) look_after(each);
  look_after_accepted();
  look_after_encryption();
  return over_unix_ + over_tcp_ == (identity_.ranks - 1) * options_.connections && all_ready();
}

bool Connector::all_ready() const {
  const auto ready = [](const Peer& peer) {
    return std::all_of(peer.connections.begin(), peer.connections.end(), [](const auto& c) { return c && c->ready(); });
  };
  return !options_.encrypt || std::all_of(matcher_.peers().begin(), matcher_.peers().end(), ready);
}

// Dials again where a TLS handshake fails or does not end in time.
void Connector::look_after_encryption() {
  for (Dial& each : dials_) {
    std::unique_ptr<Connection>& slot = matcher_.peer(each.peer).connections[each.index];
    if (!slot || slot->ready()) continue;
    if (slot->open() && Clock::now() - each.connected_at < std::max<Clock::duration>(kEncryptionDeadline, silence_))
      continue;
    each.trouble = slot->open() ? "no answer in the handshake of TLS" : slot->trouble();
    slot->abandon({});
    each.connected = false;
    --over_tcp_;
    slot.reset();
  }
}

// A rejecting firewall answers like a host without a listener, so the message names both causes.
Failure Connector::refused(int peer, bool tcp) const {
  const Address& to = addresses_[peer];
  if (!tcp) return {PRUN_EPEER, peer, fmt::format("rank #{} no longer listens", peer)};
  const bool near = to.host.same_network(listeners_.address.host);
  return {PRUN_EPEER, peer,
          fmt::format("rank #{} no longer listens on {}{}", peer, to.tcp_text(),
                      near ? "" : ", or a firewall rejects it (--port-range A:B: ports that it lets pass)")};
}

// Handles an ICMP rejection by the network (a firewall or missing route). Senders of these rate-limit them, so all
// dials share one timer; a single rejection is ignored because the network may just be coming up.
void Connector::take_rejection(int peer, int error) {
  if (error != EHOSTUNREACH && error != ENETUNREACH && error != EACCES && error != EPERM) return;
  if (!rejected_) rejected_ = Clock::now();
  if (Clock::now() - *rejected_ < kRejected) return;
  throw Failure{
      PRUN_EPEER, peer,
      fmt::format("rank #{} on {} cannot be reached: {}; a firewall rejects it (--port-range A:B: ports that it "
                  "lets pass), or there is no route",
                  peer, addresses_[peer].tcp_text(), std::strerror(error))};
}

void Connector::dial(Dial& dial) {
  const Address& to = addresses_[dial.peer];
  const bool tcp = !(options_.use_unix && to.host.same_network(listeners_.address.host));
  dial.next = Clock::now() + kDialAgain;
  Descriptor fd;
  if (tcp) {
    socklen_t length = 0;
    const sockaddr_storage address = to.tcp(&length);
    fd.reset(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) throw sdk::system_failure("socket");
    if (to.host.same_network(listeners_.address.host)) tune_tcp_of_host(fd.get(), options_);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 && errno != EINPROGRESS)
      fd.reset();
  } else {
    fd = sdk::connect_locally(to.unix_name.data(), SOCK_STREAM);
  }
  if (!fd) {
    if (errno == ECONNREFUSED) throw refused(dial.peer, tcp);
    const int error = errno;
    dial.trouble = std::strerror(error);
    if (tcp) take_rejection(dial.peer, error);
    return;
  }
  dial.greeting = std::make_unique<Greeting>(std::move(fd), tcp, identity_, dial.peer, dial.index, poller_);
  dial.greeting->on_event(0);
}

void Connector::look_after(Dial& dial) {
  const sdk::Handshake& handshake = dial.greeting->state();
  if (handshake.state() == State::running) return;
  if (handshake.state() == State::done) {
    establish(*dial.greeting);
    dial.connected = true;
    dial.connected_at = Clock::now();
  } else {
    dial.trouble = handshake.why_refused();
    if (handshake.error() == ECONNREFUSED) throw refused(dial.peer, true);
    take_rejection(dial.peer, handshake.error());
  }
  dial.greeting.reset();
}

void Connector::accept_all(Listener& listener) {
  const size_t cap = kStrangersAtOnce + static_cast<size_t>(identity_.ranks) * options_.connections;
  for (;;) {
    Descriptor fd(::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (passes_by_itself(errno)) return;
      throw sdk::system_failure("accept");
    }
    if (!listener.tcp && !sdk::same_user(fd.get())) {
      ++strangers_;
      continue;
    }
    accepted_.push_back(std::make_unique<Greeting>(std::move(fd), listener.tcp, identity_, -1, -1, poller_));
    if (accepted_.size() > cap) return;  // the others wait in the backlog until look_after_accepted frees slots
  }
}

void Connector::look_after_accepted() {
  const size_t cap = kStrangersAtOnce + static_cast<size_t>(identity_.ranks) * options_.connections;
  const auto now = Clock::now();
  for (size_t i = 0; i < accepted_.size();) {
    const sdk::Handshake& handshake = accepted_[i]->state();
    if (handshake.state() == State::done && handshake.index() < options_.connections) {
      establish(*accepted_[i]);
    } else if (handshake.state() != State::running || now - handshake.begun() > silence_ || accepted_.size() > cap) {
      ++strangers_;
    } else {
      ++i;
      continue;
    }
    accepted_.erase(accepted_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void Connector::establish(Greeting& greeting) {
  const sdk::Handshake& handshake = greeting.state();
  Peer& peer = matcher_.peer(handshake.peer());
  std::unique_ptr<Connection>& slot = peer.connections[handshake.index()];
  if (slot) {  // the peer lost its connection before it was accepted, and dialled again
    if (slot->open()) slot->abandon({PRUN_EPEER, peer.rank, "replaced"});
    --(slot->tcp() ? over_tcp_ : over_unix_);
    peer.gone = {};
  }
  const bool tcp = greeting.tcp();
  Descriptor fd = greeting.release();
  const bool near = addresses_[peer.rank].host.same_network(listeners_.address.host);
  if (tcp) {
    congestion_ = tune_tcp(fd.get(), options_);
    if (!near && is_far(fd.get())) {
      if (options_.buffer == 0) widen_send_buffer(fd.get());
      peer.ahead_limit = kAhead;
      far_ = true;
    }
  } else {
    tune_unix(fd.get(), options_);
  }
  if (options_.ahead > 0) peer.ahead_limit = options_.ahead;
  std::unique_ptr<sdk::TlsStream> tls;
  if (tcp && options_.encrypt)
    tls = std::make_unique<sdk::TlsStream>(
        fd.get(), handshake.dialler() ? sdk::TlsStream::Side::client : sdk::TlsStream::Side::server,
        handshake.encryption_key());
  const bool crc = tcp && options_.payload_crc(near) && !tls;  // TLS records are authenticated already
  slot = std::make_unique<Connection>(std::move(fd), std::move(tls), tcp, handshake.index() == 0, crc, peer, matcher_,
                                      poller_);
  ++(tcp ? over_tcp_ : over_unix_);
}

// Returns why a rank is missing; "" = unknown. Higher ranks dial lower ones. A firewall that drops packets gives no
// sign but silence, which sets `silent`.
std::string Connector::trouble(int rank, bool& silent) const {
  const auto dial = std::find_if(dials_.begin(), dials_.end(), [&](const Dial& d) { return d.peer == rank; });
  if (dial == dials_.end()) {
    silent = accepted_.empty();
    return silent ? "no connection from it" : "";
  }
  if (!dial->greeting || !sdk::TcpPath(dial->greeting->state().fd()).is_unanswered()) return dial->trouble;
  silent = true;
  return "no answer";
}

Failure Connector::missing() const {
  constexpr int kNamed = 16;
  std::string names;
  int missing = 0, first = -1;
  bool silent = false;
  for (int r = 0; r < identity_.ranks; ++r) {
    const auto& connections = matcher_.peer(r).connections;
    if (std::all_of(connections.begin(), connections.end(), [](const auto& c) { return c && c->ready(); })) continue;
    if (missing++ == 0) first = r;
    if (missing > kNamed) continue;
    names += fmt::format("{}{}", missing == 1 ? "" : ", ", r);
    const bool far = !addresses_.empty() && !addresses_[r].host.same_network(listeners_.address.host);
    if (far) names += " at " + addresses_[r].tcp_text();
    bool no_sign = false;
    const std::string why = far || r < identity_.rank ? trouble(r, no_sign) : "";
    silent |= no_sign && far;
    if (!why.empty()) names += fmt::format(" ({})", why);
  }
  if (missing > kNamed) names += fmt::format(" and {} more", missing - kNamed);
  std::string text = fmt::format("connected to {} of {} peers; missing: rank #{}", identity_.ranks - 1 - missing,
                                 identity_.ranks - 1, names);
  if (silent) text += "; a firewall may drop packets: --port-range A:B uses ports that it lets pass";
  if (strangers_ > 0) text += fmt::format("; strangers turned away: {}", strangers_);
  return {PRUN_AGAIN, first, text};
}

std::string Connector::protection() const {
  if (!options_.encrypt)
    return fmt::format("payload checksums {}", options_.crc == "auto" ? "between hosts"
                                               : options_.crc == "1"  ? "on"
                                                                      : "off");
  return fmt::format("TLS 1.3, TLS_AES_128_GCM_SHA256, {}", sdk::kernel_has_tls() ? "kTLS" : "no kTLS");
}

std::string Connector::summary() const {
  std::string text =
      fmt::format("socket: rank {} has {} connections over unix, {} over tcp", identity_.rank, over_unix_, over_tcp_);
  if (over_tcp_ > 0)
    text += fmt::format(" (congestion control {}, {}{})", congestion_, protection(), far_ ? ", peers far away" : "");
  if (strangers_ > 0) text += fmt::format("; strangers turned away: {}", strangers_);
  return text;
}

}  // namespace prun::socket
