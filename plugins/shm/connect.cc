// After the handshake each end sends one message, which SOCK_SEQPACKET delivers whole: the sizes of its memory and the
// descriptors behind it.
//
// An unauthenticated peer (another user, a wrong proof, silence) is dropped and counted; listening continues. A rank of
// this job that was not scheduled for that long is dropped as well and dials again.
#include "connect.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "prun/sdk/local_socket.h"

namespace prun::shm {
namespace {

constexpr int kMostDials = 10;
constexpr size_t kMaxStrangers = 64;
constexpr int kAcceptAtOnce = 4096;

}  // namespace

struct Connector::Offer {
  uint32_t arenas = 0, unused = 0;
  uint64_t segment_bytes = 0;
  uint64_t arena_bytes[kMaxArenas] = {};
};

std::string Connector::address() {
  Address mine;
  if (!listener_) {
    uint64_t random[2] = {};
    if (getrandom(random, sizeof random, 0) != sizeof random) throw sdk::system_failure("getrandom");
    snprintf(mine.name, sizeof mine.name, "prun-%.24s-%d-%016llx%016llx", identity_.job.data(), c_.rank,
             static_cast<unsigned long long>(random[0]), static_cast<unsigned long long>(random[1]));
    name_ = mine.name;
    listener_ = sdk::listen_locally(name_, SOCK_SEQPACKET, 1024);
    if (!listener_) throw sdk::system_failure("socket for local ranks");
  }
  mine.rank = c_.rank;
  mine.pid = getpid();
  mine.host = host_;
  sdk::copy_text(name_, mine.name, sizeof mine.name);
  return sdk::bytes_of(mine);
}

void Connector::drop(Link& link, const std::string& why) {
  c_.log(2, sdk::concat("shm: dropped a connection to rank ", c_.rank, ": ", why));
  link.dropped = true;
}

void Connector::start(const sdk::Blobs& blobs) {
  if (!listener_) throw Failure(PRUN_EINVAL, "connect before address");
  std::vector<Address> local;
  c_.local_of.assign(blobs.size(), -1);
  c_.peers.clear();
  for (int r = 0; r < c_.ranks; r++) {
    Address a;
    if (blobs[r].size() < sizeof a) continue;  // a rank without this transport
    memcpy(&a, blobs[r].data(), sizeof a);
    if (a.magic != kMagic || a.layout != kLayoutVersion)
      throw Failure(PRUN_EPEER, r, "rank #", r, " has version ", a.layout, " of shm's memory layout, this rank #",
                    kLayoutVersion);
    if (!a.host.same_network(host_)) continue;
    c_.local_of[r] = static_cast<int>(c_.peers.size());
    c_.peers.emplace_back().rank = r;
    local.push_back(a);
  }
  c_.me = c_.local_of[c_.rank];
  if (c_.me < 0) throw Failure(PRUN_EINVAL, c_.rank, "the blobs lack this rank's own");
  const int n = static_cast<int>(c_.peers.size());
  for (int i = 0; i < n; i++) c_.peers[i].layout = {n, i};
  Peer& self = c_.self();
  c_.segment = create_memory("prun-shm-control", self.layout.bytes(), self.layout.control_bytes(), false);
  if (!c_.segment.mapping)
    throw sdk::system_failure(errno == EFBIG ? "control segment (limited by ulimit -f; use --transport socket)"
                                             : "control segment");
  self.segment = {c_.segment.mapping.base(), c_.segment.mapping.bytes()};
  for (Arena& a : c_.arenas) self.arenas.push_back({a.memory.mapping.base(), a.memory.mapping.bytes()});
  c_.p2p.links.resize(n);
  for (int i = 0; i < c_.me; i++) to_dial_.push_back({local[i], 0});
  silence_ = sdk::longest_silence(n);
  started_ = true;
}

// Dials a peer. Any user may fill the backlog of a rank that is late; the rank drains it when it connects.
bool Connector::dial(const Dial& to) {
  const Address& address = to.address;
  sdk::Descriptor socket = sdk::connect_locally(address.name, SOCK_SEQPACKET);
  if (!socket && (errno == EAGAIN || errno == EINTR)) return false;
  if (!socket || !sdk::same_user(socket.get()))
    throw Failure(PRUN_EPEER, address.rank, "rank #", address.rank, " (pid ", address.pid,
                  ") does not listen: ", socket ? "another user's process does" : strerror(errno));
  links_.push_back({sdk::Handshake(std::move(socket), identity_, address.rank), {address, to.before + 1}, {}});
  return true;
}

void Connector::accept_all() {
  for (int count = 0; count < kAcceptAtOnce; count++) {
    sdk::Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const auto is_unproven = [](const Link& l) { return !l.dropped && !l.handshake.dialler() && !l.socket; };
    const auto unproven = std::count_if(links_.begin(), links_.end(), is_unproven);
    if (!sdk::same_user(socket.get())) {
      if (others_++ == 0) c_.log(2, sdk::concat("shm: rank ", c_.rank, " drops connections of another user"));
      continue;
    }
    links_.emplace_back(Link{sdk::Handshake(std::move(socket), identity_, -1), {}, {}});
    if (static_cast<size_t>(unproven) <= kMaxStrangers + c_.peers.size()) continue;
    const auto oldest = std::find_if(links_.begin(), links_.end(), is_unproven);
    drop(*oldest, "it was silent while others came");
  }
}

void Connector::send_offer(Link& link) {
  Offer offer;
  offer.segment_bytes = c_.self().layout.bytes();
  int fds[kMaxArenas + 1];
  size_t n = 0;
  fds[n++] = c_.segment.fd.get();
  for (const Arena& a : c_.arenas) {
    offer.arena_bytes[offer.arenas++] = a.memory.mapping.bytes();
    fds[n++] = a.memory.fd.get();
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  iovec io{&offer, sizeof offer};
  msghdr h{};
  h.msg_iov = &io;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = CMSG_SPACE(n * sizeof(int));
  cmsghdr* cm = CMSG_FIRSTHDR(&h);
  cm->cmsg_level = SOL_SOCKET;
  cm->cmsg_type = SCM_RIGHTS;
  cm->cmsg_len = CMSG_LEN(n * sizeof(int));
  memcpy(CMSG_DATA(cm), fds, n * sizeof(int));
  const int peer = link.handshake.peer();
  if (sendmsg(link.socket.get(), &h, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof offer))
    throw Failure(PRUN_EPEER, peer, "passing memory to rank #", peer, ": ", strerror(errno));
}

// Receives the peer's offer; false: it has not arrived.
bool Connector::take_offer(Link& link) {
  Offer offer;
  alignas(cmsghdr) char control[CMSG_SPACE((kMaxArenas + 1) * sizeof(int))];
  iovec io{&offer, sizeof offer};
  msghdr h{};
  h.msg_iov = &io;
  h.msg_iovlen = 1;
  h.msg_control = control;
  h.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(link.socket.get(), &h, MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  std::vector<sdk::Descriptor> fds;
  for (cmsghdr* cm = n > 0 ? CMSG_FIRSTHDR(&h) : nullptr; cm; cm = CMSG_NXTHDR(&h, cm)) {
    if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> passed((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(passed.data(), CMSG_DATA(cm), passed.size() * sizeof(int));
    for (int fd : passed) fds.emplace_back(fd);
  }
  const int rank = link.handshake.peer();
  Peer& peer = c_.peers[c_.local_index(rank)];
  if (n != sizeof offer) throw Failure(PRUN_EPEER, rank, "rank #", rank, " closed the connection while connecting");
  if (offer.segment_bytes != peer.layout.bytes() || offer.arenas > kMaxArenas || fds.size() != offer.arenas + 1)
    throw Failure(PRUN_EPEER, rank, "rank #", rank, " sent an offer that makes no sense");
  map(peer, offer, fds);
  peer.socket = std::move(link.socket);
  return true;
}

void Connector::map(Peer& peer, const Offer& offer, std::vector<sdk::Descriptor>& fds) {
  const auto add = [&](const sdk::Descriptor& fd, size_t bytes, size_t mapped, bool huge) -> View {
    peer.mappings.push_back(map_peer(fd, bytes, mapped, huge));
    if (!peer.mappings.back())
      throw Failure(errno == ENOMEM ? PRUN_ENOMEM : PRUN_ESYSTEM, peer.rank, "cannot map ", mapped >> 20,
                    " MiB of rank #", peer.rank, ": ", strerror(errno),
                    errno == ENOMEM ? " (the limit on addresses, see ulimit -v)" : "");
    return {peer.mappings.back().base(), mapped};
  };
  peer.segment = add(fds[0], peer.layout.bytes(), peer.layout.control_bytes(), false);
  for (uint32_t i = 0; i < offer.arenas; i++)
    peer.arenas.push_back(add(fds[i + 1], offer.arena_bytes[i], offer.arena_bytes[i], c_.options.huge));
  peer.segment_fd = std::move(fds[0]);
}

bool Connector::advance(Link& link) {
  if (link.dropped || link.socket) return link.dropped || take_offer(link);
  sdk::Handshake& handshake = link.handshake;
  const sdk::Handshake::State state = handshake.advance();
  if (state == sdk::Handshake::State::refused && handshake.dialler()) {
    if (handshake.error() == 0 || link.dial.before == kMostDials)
      throw Failure(PRUN_EPEER, handshake.peer(), "rank #", handshake.peer(),
                    " cannot be joined: ", handshake.why_refused());
    to_dial_.push_back(link.dial);
    return true;
  }
  if (state == sdk::Handshake::State::refused) {
    drop(link, handshake.why_refused());
  } else if (state == sdk::Handshake::State::running) {
    return false;
  } else if (c_.local_of[handshake.peer()] < 0 || c_.peers[c_.local_of[handshake.peer()]].socket) {
    drop(link, "this rank has come before");
  } else {
    link.socket = handshake.release();
    send_offer(link);
    return take_offer(link);
  }
  return link.dropped;
}

// Advances the links with events: with hundreds of ranks per core, trying each link would take all of its time.
void Connector::advance_all() {
  std::vector<pollfd> waits;
  for (const Link& link : links_) {
    const int fd = link.socket ? link.socket.get() : link.handshake.fd();
    waits.push_back({fd, static_cast<short>(link.socket || link.handshake.reads() ? POLLIN : POLLOUT), 0});
  }
  ::poll(waits.data(), waits.size(), 0);
  const auto now = sdk::Handshake::Clock::now();
  auto wait = waits.begin();
  std::erase_if(links_, [&](Link& link) {
    if ((wait++)->revents != 0 && !link.dropped && advance(link)) return true;
    const bool unproven = !link.handshake.dialler() && !link.socket;
    if (!link.dropped && unproven && now - link.handshake.begun() > silence_)
      drop(link, sdk::concat("it was silent for ", silence_.count(), " seconds"));
    return link.dropped;
  });
}

Failure Connector::connect(const sdk::Blobs& blobs) {
  if (!started_) start(blobs);
  accept_all();
  std::erase_if(to_dial_, [&](const Dial& to) { return dial(to); });
  advance_all();
  for (const Peer& peer : c_.peers)
    if (peer.rank != c_.rank && !peer.socket) return {PRUN_AGAIN, peer.rank, "waiting for rank #", peer.rank};
  // Peers keep their mappings, so arenas need no descriptors any more; blocks are mapped on demand.
  c_.self().segment_fd = std::move(c_.segment.fd);
  for (Arena& a : c_.arenas) a.memory.fd.reset();
  return {};
}

}  // namespace prun::shm
