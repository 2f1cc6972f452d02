// A first transport of one's own: point to point over Unix sockets of one host, in one file, and nothing optional.
//
// It shows the least that a plugin must do; the core makes collectives, deadlines and the naming of ranks out of it.
// The first error ends the whole context: whatever is under way ends with it.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "prun/transport.h"

struct prun_req {
  size_t left = 0;  // operations that have not ended
};

namespace {

const prun_host* g_host = nullptr;

struct Header {
  uint64_t tag, bytes;
};  // before every message
struct Outgoing {
  Header header;
  const char* data;
  size_t sent;
  prun_req* req;
};
struct Waiting {
  char* data;
  size_t bytes;
  prun_req* req;
};  // a receive that nothing has come for

struct Peer {
  int fd = -1;
  std::deque<Outgoing> out;
  std::map<uint64_t, std::deque<Waiting>> waiting;          // by tag
  std::map<uint64_t, std::deque<std::vector<char>>> early;  // messages that came before their receive
  Header header{};                                          // of the message that is coming in
  size_t header_read = 0, payload_read = 0;
  Waiting target{};  // where it goes; req null: into early_data
  std::vector<char> early_data;
};

prun_status fail(prun_result* result, prun_status status, int culprit, const std::string& text) {
  result->culprit = culprit;
  snprintf(result->message, sizeof result->message, "%s", text.c_str());
  return status;
}

}  // namespace

struct prun_ctx {
  int rank = 0, ranks = 0, listener = -1;
  std::string name;
  std::vector<Peer> peers;
  std::vector<int> accepted;  // connections whose first word, the peer's rank, is still to be read
  std::mutex mutex;
  prun_status failed = PRUN_OK;
  prun_result reason{};

  void set_failed(prun_status status, int culprit, const std::string& text) {
    if (failed == PRUN_OK) failed = fail(&reason, status, culprit, text);
  }
  void lost(int peer) {
    Peer& p = peers[static_cast<size_t>(peer)];
    if (p.fd >= 0) close(p.fd);
    p.fd = -1;
    bool missed = !p.out.empty() || p.target.req != nullptr;
    for (auto& [tag, queue] : p.waiting) missed |= !queue.empty();
    if (missed) set_failed(PRUN_EPEER, peer, "its connection is closed");
  }
  void deliver(int peer, uint64_t tag, const Waiting& to, size_t bytes) {
    if (to.bytes != bytes) {
      set_failed(PRUN_EMISMATCH, peer,
                 "a message of " + std::to_string(bytes) + " bytes on lane " + std::to_string(tag) + " where " +
                     std::to_string(to.bytes) + " are expected");
    }
  }
  void write_some(int peer);
  void read_some(int peer);
  void add(const prun_p2p& op, prun_req* req);
};

void prun_ctx::write_some(int peer) {
  Peer& p = peers[static_cast<size_t>(peer)];
  while (!p.out.empty() && p.fd >= 0) {
    Outgoing& o = p.out.front();
    const char* from =
        o.sent < sizeof o.header ? reinterpret_cast<char*>(&o.header) + o.sent : o.data + (o.sent - sizeof o.header);
    size_t bytes = o.sent < sizeof o.header ? sizeof o.header - o.sent : o.header.bytes - (o.sent - sizeof o.header);
    ssize_t n = bytes == 0 ? 0 : send(p.fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) return lost(peer);
    o.sent += static_cast<size_t>(n);
    if (o.sent < sizeof o.header + o.header.bytes) continue;
    --o.req->left;
    p.out.pop_front();
  }
}

void prun_ctx::read_some(int peer) {
  Peer& p = peers[static_cast<size_t>(peer)];
  while (p.fd >= 0 && failed == PRUN_OK) {
    bool in_header = p.header_read < sizeof p.header;
    char* into = in_header ? reinterpret_cast<char*>(&p.header) + p.header_read
                           : (p.target.req != nullptr ? p.target.data : p.early_data.data()) + p.payload_read;
    size_t bytes = in_header ? sizeof p.header - p.header_read : p.header.bytes - p.payload_read;
    ssize_t n = bytes == 0 ? 0 : recv(p.fd, into, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0 || (n == 0 && bytes > 0)) return lost(peer);
    (in_header ? p.header_read : p.payload_read) += static_cast<size_t>(n);
    if (p.header_read < sizeof p.header) continue;
    if (in_header) {  // complete now: choose where the payload goes
      std::deque<Waiting>& queue = p.waiting[p.header.tag];
      p.target = queue.empty() ? Waiting{} : queue.front();
      if (queue.empty())
        p.early_data.resize(p.header.bytes);
      else {
        queue.pop_front();
        deliver(peer, p.header.tag, p.target, p.header.bytes);
      }
      continue;
    }
    if (p.payload_read < p.header.bytes) continue;
    if (p.target.req != nullptr)
      --p.target.req->left;
    else
      p.early[p.header.tag].push_back(std::move(p.early_data));
    // A receive may have been posted while its message was still on its way into early_data: match them now.
    std::deque<Waiting>& queue = p.waiting[p.header.tag];
    std::deque<std::vector<char>>& early = p.early[p.header.tag];
    while (!queue.empty() && !early.empty() && failed == PRUN_OK) {
      deliver(peer, p.header.tag, queue.front(), early.front().size());
      if (failed != PRUN_OK) return;
      if (!early.front().empty()) memcpy(queue.front().data, early.front().data(), early.front().size());
      --queue.front().req->left;
      queue.pop_front();
      early.pop_front();
    }
    p.early_data = {};
    p.target = {};
    p.header_read = p.payload_read = 0;
  }
}

void prun_ctx::add(const prun_p2p& op, prun_req* req) {
  Peer& p = peers[static_cast<size_t>(op.peer)];
  ++req->left;
  auto& early = p.early[op.tag];
  auto& waiting = p.waiting[op.tag];
  if (op.is_recv != 0 && !early.empty() && waiting.empty()) {
    deliver(op.peer, op.tag, {static_cast<char*>(op.ptr), op.bytes, req}, early.front().size());
    if (failed != PRUN_OK) return;
    if (op.bytes > 0) memcpy(op.ptr, early.front().data(), op.bytes);
    early.pop_front();
    --req->left;
  } else if (op.is_recv != 0) {
    waiting.push_back({static_cast<char*>(op.ptr), op.bytes, req});
    if (p.fd < 0 && op.peer != rank) lost(op.peer);
  } else if (op.peer == rank && waiting.empty()) {
    early.emplace_back(static_cast<char*>(op.ptr), static_cast<char*>(op.ptr) + op.bytes);
    --req->left;
  } else if (op.peer == rank) {
    deliver(rank, op.tag, waiting.front(), op.bytes);
    if (failed != PRUN_OK) return;
    if (op.bytes > 0) memcpy(waiting.front().data, op.ptr, op.bytes);
    --waiting.front().req->left;
    waiting.pop_front();
    --req->left;
  } else {
    p.out.push_back({{op.tag, op.bytes}, static_cast<const char*>(op.ptr), 0, req});
    if (p.fd < 0) lost(op.peer);
  }
}

namespace {

sockaddr_un abstract_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero byte: no file
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

prun_status pipe_open(const prun_open_params* params, prun_ctx** ctx, prun_result* result) {
  if (params->options[0] != '\0' && strcmp(params->options, "quiet=1") != 0) {
    return fail(result, PRUN_EINVAL, -1, std::string("unknown option '") + params->options + "'");
  }
  auto* c = new prun_ctx;
  c->rank = params->rank;
  c->ranks = params->ranks;
  c->peers.resize(static_cast<size_t>(params->ranks));
  c->name = "prun-pipe-" + std::string(params->job_id) + "-" + std::to_string(getpid());
  socklen_t length;
  sockaddr_un address = abstract_address(c->name, &length);
  c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (c->listener < 0 || bind(c->listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(c->listener, 128) != 0) {
    std::string why = strerror(errno);
    if (c->listener >= 0) close(c->listener);
    delete c;
    return fail(result, PRUN_ESYSTEM, -1, "no socket: " + why);
  }
  *ctx = c;
  return PRUN_OK;
}

prun_status pipe_address(prun_ctx* c, void* blob, size_t* bytes, prun_result*) {
  memcpy(blob, c->name.data(), c->name.size());
  *bytes = c->name.size();
  return PRUN_OK;
}

// Every rank connects to those below it and says who it is; those above connect to it.
prun_status pipe_connect(prun_ctx* c, const void* const* blobs, const size_t* bytes, prun_result* result) {
  int missing = -1;
  for (int r = 0; r < c->rank; ++r) {
    Peer& p = c->peers[static_cast<size_t>(r)];
    if (p.fd >= 0) continue;
    socklen_t length;
    sockaddr_un address = abstract_address(std::string(static_cast<const char*>(blobs[r]), bytes[r]), &length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int32_t me = c->rank;
    if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        send(fd, &me, sizeof me, MSG_NOSIGNAL) == sizeof me) {
      p.fd = fd;
      continue;
    }
    int error = errno;
    if (fd >= 0) close(fd);
    if (error != EAGAIN) return fail(result, PRUN_EPEER, r, strerror(error));
    missing = r;
  }
  for (int fd; (fd = accept4(c->listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;)
    c->accepted.push_back(fd);
  for (int& fd : c->accepted) {
    int32_t who = -1;
    if (fd >= 0 && recv(fd, &who, sizeof who, MSG_DONTWAIT) == sizeof who && who > c->rank && who < c->ranks) {
      c->peers[static_cast<size_t>(who)].fd = fd;
      fd = -1;
    }
  }
  for (int r = 0; r < c->ranks; ++r) {
    if (r != c->rank && c->peers[static_cast<size_t>(r)].fd < 0) missing = r;
  }
  result->culprit = missing;
  return missing < 0 ? PRUN_OK : PRUN_AGAIN;
}

prun_status pipe_batch(prun_ctx* c, const prun_p2p* ops, size_t n, prun_queue, prun_req** req, prun_result* result) {
  std::lock_guard lock(c->mutex);
  if (c->failed != PRUN_OK) return fail(result, c->failed, c->reason.culprit, c->reason.message);
  *req = new prun_req;
  for (size_t i = 0; i < n && c->failed == PRUN_OK; ++i) c->add(ops[i], *req);
  for (int r = 0; r < c->ranks; ++r) c->write_some(r);
  return PRUN_OK;
}

prun_status pipe_test(prun_ctx* c, prun_req* req, prun_result* result) {
  std::vector<pollfd> fds;
  {
    std::lock_guard lock(c->mutex);
    for (int r = 0; r < c->ranks && c->failed == PRUN_OK; ++r) {
      c->write_some(r);
      c->read_some(r);
      const Peer& p = c->peers[static_cast<size_t>(r)];
      if (p.fd >= 0) fds.push_back({p.fd, static_cast<short>(p.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    if (g_host->aborted() != 0) c->set_failed(PRUN_EABORTED, -1, "aborted");
    if (c->failed != PRUN_OK || req->left == 0) {
      prun_status status = req->left == 0 ? PRUN_OK : c->failed;
      if (status != PRUN_OK) fail(result, status, c->reason.culprit, c->reason.message);
      delete req;
      return status;
    }
  }
  // Briefly: another thread may take in what this request waits for.
  poll(fds.data(), fds.size(), 2);
  return PRUN_AGAIN;
}

void pipe_abort(prun_ctx* c) {
  std::lock_guard lock(c->mutex);
  c->set_failed(PRUN_EABORTED, -1, "aborted");
}

void pipe_close(prun_ctx* c) {
  for (Peer& p : c->peers) {
    if (p.fd >= 0) close(p.fd);
  }
  for (int fd : c->accepted) {
    if (fd >= 0) close(fd);
  }
  close(c->listener);
  delete c;
}

}  // namespace

extern "C" const prun_transport* prun_transport_v1(const prun_host* host) {
  g_host = host;
  static prun_transport table = [] {
    prun_transport t{};
    t.size = sizeof t;
    t.abi = PRUN_TRANSPORT_ABI;
    t.name = "pipe";
    t.version = "1.0.0";
    t.summary = "Unix sockets of one host, the smallest transport there is";
    t.mem_kinds = 1u << PRUN_MEM_HOST;
    t.local_only = 1;
    t.open = pipe_open;
    t.address = pipe_address;
    t.connect = pipe_connect;
    t.batch = pipe_batch;
    t.test = pipe_test;
    t.abort = pipe_abort;
    t.close = pipe_close;
    return t;
  }();
  return &table;
}
