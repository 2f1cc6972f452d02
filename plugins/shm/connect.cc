// The handshake, one fixed-size message at a time (SOCK_SEQPACKET keeps their bounds):
//
//   higher rank            lower rank
//   greeting, nonce   ->
//                     <-   nonce, proof
//   proof, memory     ->
//                     <-   memory
//
// A stranger (another user, a wrong proof, silence for two seconds) is dropped and counted; listening goes on.
#include "connect.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace prun::shm {
namespace {

constexpr uint32_t kMagic = 0x6d687370;  // "pshm"
constexpr uint64_t kSilenceNs = 2'000'000'000;
constexpr size_t kMaxStrangers = 64;

struct HostKey {
  char boot[40] = {};
  uint64_t device = 0, inode = 0;
};

HostKey this_host() {
  HostKey key;
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    const ssize_t n = read(fd, key.boot, sizeof key.boot - 1);
    key.boot[n > 0 ? n : 0] = 0;
    close(fd);
  }
  struct stat st {};
  if (stat("/proc/self/ns/net", &st) == 0) {
    key.device = st.st_dev;
    key.inode = st.st_ino;
  }
  return key;
}

sockaddr_un abstract_name(const char* name, socklen_t& length) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  const size_t n = std::min(strlen(name), sizeof a.sun_path - 1);
  memcpy(a.sun_path + 1, name, n);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return a;
}

bool same_user(int fd) {
  ucred who{};
  socklen_t n = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == geteuid();
}

}  // namespace

struct Connector::Blob {
  uint32_t magic = kMagic, layout = kLayoutVersion;
  int32_t rank = -1, pid = 0;
  HostKey host;
  char name[80] = {};
};

struct Connector::Message {
  uint32_t magic = kMagic, layout = kLayoutVersion;
  int32_t rank = -1;
  uint32_t arenas = 0;
  std::array<uint8_t, 32> nonce{}, proof{};
  uint64_t segment_bytes = 0;
  uint64_t arena_bytes[kMaxArenas] = {};
};

struct Connector::Link {
  int fd = -1;
  int peer = -1;  // local index; of an accepted link only once it is proven
  bool dialled = false;
  Step step = Step::greet_sent;
  int high = -1, low = -1;  // global ranks, as claimed
  std::array<uint8_t, 32> high_nonce{}, low_nonce{};
  uint64_t since = 0;
};

Connector::Connector(Context& context) : c_(context) {}

Connector::~Connector() {
  if (listener_ >= 0) close(listener_);
  for (Link& link : links_)
    if (link.fd >= 0 && link.step != Step::done) close(link.fd);
}

prun_status Connector::address(void* blob, size_t* bytes, prun_result* result) {
  if (*bytes < sizeof(Blob)) return fail(result, PRUN_EINVAL, -1, "an address needs %zu bytes", sizeof(Blob));
  if (!mine_) {
    auto made = std::make_unique<Blob>();
    made->rank = c_.rank;
    made->pid = getpid();
    made->host = this_host();
    uint64_t random[2] = {};
    if (getrandom(random, sizeof random, 0) != sizeof random)
      return fail(result, PRUN_ESYSTEM, -1, "getrandom: %s", strerror(errno));
    snprintf(made->name, sizeof made->name, "prun-%.24s-%d-%016llx%016llx", c_.job_id.c_str(), c_.rank,
             static_cast<unsigned long long>(random[0]), static_cast<unsigned long long>(random[1]));
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t length = 0;
    const sockaddr_un a = abstract_name(made->name, length);
    if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&a), length) != 0 ||
        listen(listener_, 1024) != 0)
      return fail(result, PRUN_ESYSTEM, -1, "socket for local ranks: %s", strerror(errno));
    mine_ = std::move(made);
  }
  memcpy(blob, mine_.get(), sizeof(Blob));
  *bytes = sizeof(Blob);
  return PRUN_OK;
}

std::array<uint8_t, 32> Connector::proof(const Link& link, char role) const {
  uint8_t text[160] = {};
  size_t n = 0;
  auto add = [&](const void* p, size_t size) { memcpy(text + n, p, size), n += size; };
  add(&role, 1);
  add(&kLayoutVersion, sizeof kLayoutVersion);
  add(&link.high, sizeof link.high);
  add(&link.low, sizeof link.low);
  add(link.high_nonce.data(), link.high_nonce.size());
  add(link.low_nonce.data(), link.low_nonce.size());
  add(c_.job_id.data(), std::min<size_t>(c_.job_id.size(), 40));
  std::array<uint8_t, 32> mac{};
  unsigned length = 0;
  HMAC(EVP_sha256(), c_.secret.data(), static_cast<int>(c_.secret.size()), text, n, mac.data(), &length);
  return mac;
}

void Connector::drop(Link& link, const char* why) {
  char text[160];
  snprintf(text, sizeof text, "shm: dropped a connection to rank %d: %s", c_.rank, why);
  if (c_.host->log) c_.host->log(2, text);
  close(link.fd);
  link.fd = -1;
  link.step = Step::dropped;
}

prun_status Connector::start(const void* const* blobs, const size_t* bytes, prun_result* result) {
  std::vector<Blob> local;
  c_.local_of.assign(static_cast<size_t>(c_.ranks), -1);
  c_.peers.clear();
  for (int r = 0; r < c_.ranks; r++) {
    Blob b;
    if (!blobs[r] || bytes[r] < sizeof b) continue;  // of a rank without this transport
    memcpy(&b, blobs[r], sizeof b);
    if (b.magic != kMagic || b.layout != kLayoutVersion)
      return fail(result, PRUN_EPEER, r, "rank #%d has version %u of shm's memory layout, this rank %u", r, b.layout,
                  kLayoutVersion);
    if (memcmp(&b.host, &mine_->host, sizeof b.host) != 0) continue;  // of another host
    c_.local_of[static_cast<size_t>(r)] = static_cast<int>(c_.peers.size());
    c_.peers.emplace_back().rank = r;
    local.push_back(b);
  }
  c_.me = c_.local_of[static_cast<size_t>(c_.rank)];
  if (c_.me < 0) return fail(result, PRUN_EINVAL, c_.rank, "the blobs lack this rank's own");
  const int n = static_cast<int>(c_.peers.size());
  for (int i = 0; i < n; i++) c_.peers[static_cast<size_t>(i)].layout = {n, i};
  Peer& self = c_.self();
  self.segment = create_mapping("prun-shm-control", self.layout.bytes(), false);
  if (!self.segment.base) return fail(result, PRUN_ESYSTEM, -1, "control segment: %s", strerror(errno));
  for (Arena& a : c_.arenas) self.arenas.push_back({-1, a.mapping.base, a.mapping.bytes});
  c_.p2p.links.resize(static_cast<size_t>(n));
  for (int i = 0; i < c_.me; i++)
    if (prun_status s = dial(i, local[static_cast<size_t>(i)], result); s != PRUN_OK) return s;
  started_ = true;
  return PRUN_OK;
}

prun_status Connector::dial(int peer, const Blob& blob, prun_result* result) {
  Link link;
  link.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (link.fd < 0) return fail(result, PRUN_ESYSTEM, -1, "socket: %s", strerror(errno));
  socklen_t length = 0;
  const sockaddr_un a = abstract_name(blob.name, length);
  if (::connect(link.fd, reinterpret_cast<const sockaddr*>(&a), length) != 0 || !same_user(link.fd)) {
    const int error = errno;
    close(link.fd);
    return fail(result, PRUN_EPEER, blob.rank, "rank #%d (pid %d) does not listen: %s", blob.rank, blob.pid,
                strerror(error));
  }
  link.dialled = true;
  link.peer = peer;
  link.high = c_.rank;
  link.low = blob.rank;
  link.since = now_ns();
  Message m;
  m.rank = c_.rank;
  if (getrandom(link.high_nonce.data(), 32, 0) != 32) m.magic = 0;
  m.nonce = link.high_nonce;
  if (send(link.fd, &m, sizeof m, MSG_NOSIGNAL) != sizeof m) {
    close(link.fd);
    return fail(result, PRUN_EPEER, blob.rank, "rank #%d: %s", blob.rank, strerror(errno));
  }
  links_.push_back(link);
  return PRUN_OK;
}

void Connector::accept_all() {
  while (true) {
    Link link;
    link.fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (link.fd < 0) return;
    const auto unproven = std::count_if(links_.begin(), links_.end(), [](const Link& l) {
      return !l.dialled && (l.step == Step::greet_sent || l.step == Step::greeted);
    });
    link.since = now_ns();
    link.low = c_.rank;
    if (!same_user(link.fd))
      drop(link, "it comes from another user");
    else if (static_cast<size_t>(unproven) > kMaxStrangers + c_.peers.size())
      drop(link, "too many strangers");
    else
      links_.push_back(link);
  }
}

bool Connector::send_offer(Link& link) {
  Message m;
  m.rank = c_.rank;
  m.proof = proof(link, link.dialled ? 'h' : 'o');
  m.segment_bytes = c_.self().segment.bytes;
  int fds[kMaxArenas + 1];
  size_t n = 0;
  fds[n++] = c_.self().segment.fd;
  for (const Arena& a : c_.arenas) {
    m.arena_bytes[m.arenas++] = a.mapping.bytes;
    fds[n++] = a.mapping.fd;
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
  iovec io{&m, sizeof m};
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
  return sendmsg(link.fd, &h, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof m);
}

prun_status Connector::take_greeting(Link& link, const Message& m) {
  link.high = m.rank;
  link.high_nonce = m.nonce;
  Message reply;
  reply.rank = c_.rank;
  if (m.rank <= c_.rank || m.rank >= c_.ranks || getrandom(link.low_nonce.data(), 32, 0) != 32) {
    drop(link, "its greeting makes no sense");
    return PRUN_OK;
  }
  reply.nonce = link.low_nonce;
  reply.proof = proof(link, 'l');
  if (send(link.fd, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply)
    drop(link, "it went away");
  else
    link.step = Step::greeted;
  return PRUN_OK;
}

prun_status Connector::take_reply(Link& link, const Message& m, prun_result* result) {
  link.low_nonce = m.nonce;
  if (m.rank != link.low || CRYPTO_memcmp(m.proof.data(), proof(link, 'l').data(), 32) != 0)
    return fail(result, PRUN_EPEER, link.low, "rank #%d does not know this job's secret", link.low);
  if (!send_offer(link))
    return fail(result, PRUN_EPEER, link.low, "passing memory to rank #%d: %s", link.low, strerror(errno));
  link.step = Step::offered;
  return PRUN_OK;
}

prun_status Connector::take_offer(Link& link, const Message& m, const std::vector<int>& fds, prun_result* result) {
  auto close_all = [&] {
    for (int fd : fds) close(fd);
  };
  const char expected = link.dialled ? 'o' : 'h';
  const int rank = link.dialled ? link.low : link.high;
  const int local = c_.local_of[static_cast<size_t>(rank)];
  const bool proven = m.rank == rank && CRYPTO_memcmp(m.proof.data(), proof(link, expected).data(), 32) == 0;
  if (!proven || local < 0 || c_.peers[static_cast<size_t>(local)].socket >= 0 || m.arenas > kMaxArenas ||
      fds.size() != m.arenas + 1) {
    close_all();
    if (link.dialled) return fail(result, PRUN_EPEER, rank, "rank #%d sent an offer that makes no sense", rank);
    drop(link, "it does not know this job's secret");
    return PRUN_OK;
  }
  Peer& peer = c_.peers[static_cast<size_t>(local)];
  link.peer = local;
  bool good = m.segment_bytes == peer.layout.bytes();
  peer.segment = map_peer(fds[0], m.segment_bytes, false);
  good &= peer.segment.base != nullptr;
  for (uint32_t i = 0; i < m.arenas; i++) {
    peer.arenas.push_back(map_peer(fds[i + 1], m.arena_bytes[i], c_.options.huge));
    good &= peer.arenas.back().base != nullptr;
  }
  if (!good) return fail(result, PRUN_ESYSTEM, rank, "cannot map the memory of rank #%d: %s", rank, strerror(errno));
  if (!link.dialled && !send_offer(link))
    return fail(result, PRUN_EPEER, rank, "passing memory to rank #%d: %s", rank, strerror(errno));
  link.step = Step::done;
  peer.socket = link.fd;
  return PRUN_OK;
}

prun_status Connector::advance(Link& link, prun_result* result) {
  while (link.step != Step::done && link.step != Step::dropped) {
    Message m;
    alignas(cmsghdr) char control[CMSG_SPACE((kMaxArenas + 1) * sizeof(int))];
    iovec io{&m, sizeof m};
    msghdr h{};
    h.msg_iov = &io;
    h.msg_iovlen = 1;
    h.msg_control = control;
    h.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(link.fd, &h, MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      if (!link.dialled && now_ns() - link.since > kSilenceNs) drop(link, "it was silent for two seconds");
      return PRUN_OK;
    }
    std::vector<int> fds;
    for (cmsghdr* cm = n > 0 ? CMSG_FIRSTHDR(&h) : nullptr; cm; cm = CMSG_NXTHDR(&h, cm)) {
      if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) continue;
      fds.resize((cm->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      memcpy(fds.data(), CMSG_DATA(cm), fds.size() * sizeof(int));
    }
    const bool offer = link.dialled ? link.step == Step::offered : link.step == Step::greeted;
    const bool whole = n == sizeof m && m.magic == kMagic && m.layout == kLayoutVersion;
    if (!whole || (!offer && !fds.empty())) {
      for (int fd : fds) close(fd);
      if (link.dialled)
        return fail(result, PRUN_EPEER, link.low, "rank #%d closed the connection while connecting", link.low);
      drop(link, n == 0 ? "it closed" : "it does not speak this protocol");
      return PRUN_OK;
    }
    prun_status s = PRUN_OK;
    if (offer)
      s = take_offer(link, m, fds, result);
    else if (link.dialled)
      s = take_reply(link, m, result);
    else
      s = take_greeting(link, m);
    if (s != PRUN_OK) return s;
  }
  return PRUN_OK;
}

prun_status Connector::connect(const void* const* blobs, const size_t* bytes, prun_result* result) {
  if (!started_)
    if (prun_status s = start(blobs, bytes, result); s != PRUN_OK) return s;
  accept_all();
  for (Link& link : links_)
    if (prun_status s = advance(link, result); s != PRUN_OK) return s;
  std::erase_if(links_, [](const Link& link) { return link.step == Step::dropped || link.step == Step::done; });
  for (const Peer& peer : c_.peers)
    if (peer.rank != c_.rank && peer.socket < 0)
      return fail(result, PRUN_AGAIN, peer.rank, "waiting for rank #%d", peer.rank);
  // Peers keep what they have mapped; the descriptors have done their work.
  close(c_.self().segment.fd);
  c_.self().segment.fd = -1;
  for (Arena& a : c_.arenas) close(a.mapping.fd), a.mapping.fd = -1;
  return PRUN_OK;
}

}  // namespace prun::shm
