// Messages over Unix sockets of one host in one file: the minimal conforming plugin, with which the suite is tested.
#include <poll.h>
#include <prun/sdk/handshake.h>
#include <prun/sdk/local_socket.h>
#include <prun/sdk/messages.h>
#include <prun/sdk/options.h>

#include <list>
#include <map>

namespace prun::pipe {

using sdk::Descriptor;
using sdk::Failure;

struct Header {  // precedes every message
  uint64_t tag, bytes;
};
struct Outgoing {
  Header header;
  const char* data;
  size_t sent;
  sdk::MessageTransport::Request* request;
};
struct Receive {  // unmatched
  char* data;
  size_t bytes;
  sdk::MessageTransport::Request* request;
};

struct Peer {
  Descriptor fd;
  std::deque<Outgoing> out;
  std::map<uint64_t, std::deque<Receive>> waiting;          // by tag
  std::map<uint64_t, std::deque<std::vector<char>>> early;  // messages that arrived before their receive
  Header header{};                                          // of the arriving message
  size_t header_read = 0, payload_read = 0;
  Receive target{};  // destination of the payload; null request = early_data
  std::vector<char> early_data;
};

class Pipe : public sdk::MessageTransport {
 public:
  explicit Pipe(const prun_open_params& params) : MessageTransport(params), peers_(params.ranks), identity_(params) {
    bool quiet = false;
    const sdk::Option rows[] = {{"quiet", &quiet}};
    sdk::parse_options("pipe", params.options, rows);
    name_ = sdk::concat("prun-pipe-", params.job_id, "-", getpid());
    listener_ = sdk::listen_locally(name_, SOCK_STREAM, 128);
    if (!listener_) throw sdk::system_failure("no socket");
  }
  std::string address() { return name_; }

  // Every rank dials the lower ranks. Both ends prove that they have the job's secret.
  Failure connect(const sdk::Blobs& blobs) {
    for (; dialled_ < rank; ++dialled_) {
      Descriptor fd = sdk::connect_locally(blobs[dialled_], SOCK_STREAM);
      if (!fd && errno == EAGAIN) break;
      if (!fd) return {PRUN_EPEER, dialled_, strerror(errno)};
      handshakes_.emplace_back(std::move(fd), identity_, dialled_);
    }
    for (int fd; (fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;)
      handshakes_.emplace_back(Descriptor(fd), identity_, -1);
    for (auto hand = handshakes_.begin(); hand != handshakes_.end();) {
      const sdk::Handshake::State state = hand->advance();
      if (state == sdk::Handshake::State::refused && hand->dialler())
        return {PRUN_EPEER, hand->peer(), hand->why_refused()};
      if (state == sdk::Handshake::State::done) peers_[hand->peer()].fd = hand->release();
      hand = state == sdk::Handshake::State::running ? std::next(hand) : handshakes_.erase(hand);
    }
    for (int r = 0; r < ranks; ++r)
      if (r != rank && !peers_[r].fd) return {PRUN_AGAIN, r};
    return {};
  }

 private:
  bool start(const prun_p2p& op, Request& request) override;
  void progress() override {
    for (int r = 0; r < ranks; ++r) {
      write_some(r);
      read_some(r);
    }
  }
  void wait() override {
    std::vector<pollfd> fds;
    {
      const std::lock_guard lock(mutex_);
      for (const Peer& p : peers_)
        if (p.fd) fds.push_back({p.fd.get(), static_cast<short>(p.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    poll(fds.data(), fds.size(), 2);
  }

  void lost(int peer) {
    Peer& p = peers_[peer];
    p.fd.reset();
    bool missed = !p.out.empty() || p.target.request != nullptr;
    for (auto& [tag, queue] : p.waiting) missed |= !queue.empty();
    if (missed) throw Failure(PRUN_EPEER, peer, "its connection is closed");
  }
  static void check_size(int peer, uint64_t tag, const Receive& to, size_t bytes) {
    if (to.bytes != bytes)
      throw Failure(PRUN_EMISMATCH, peer, "a message of ", bytes, " bytes on lane ", tag, " where ", to.bytes,
                    " are expected");
  }
  void write_some(int peer);
  void read_some(int peer);
  void match(int peer, uint64_t tag);

  std::string name_;
  Descriptor listener_;
  std::vector<Peer> peers_;
  const sdk::Identity identity_;
  int dialled_ = 0;                       // ranks below this one were dialled
  std::list<sdk::Handshake> handshakes_;  // in progress
};

void Pipe::write_some(int peer) {
  Peer& p = peers_[peer];
  while (!p.out.empty() && p.fd) {
    Outgoing& o = p.out.front();
    const char* from =
        o.sent < sizeof o.header ? reinterpret_cast<char*>(&o.header) + o.sent : o.data + (o.sent - sizeof o.header);
    size_t bytes = o.sent < sizeof o.header ? sizeof o.header - o.sent : o.header.bytes - (o.sent - sizeof o.header);
    ssize_t n = bytes == 0 ? 0 : send(p.fd.get(), from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) return lost(peer);
    o.sent += static_cast<size_t>(n);
    if (o.sent < sizeof o.header + o.header.bytes) continue;
    --o.request->left;
    p.out.pop_front();
  }
}

// Delivers early messages to receives that were posted since.
void Pipe::match(int peer, uint64_t tag) {
  std::deque<Receive>& queue = peers_[peer].waiting[tag];
  std::deque<std::vector<char>>& early = peers_[peer].early[tag];
  for (; !queue.empty() && !early.empty(); queue.pop_front(), early.pop_front()) {
    check_size(peer, tag, queue.front(), early.front().size());
    if (!early.front().empty()) memcpy(queue.front().data, early.front().data(), early.front().size());
    --queue.front().request->left;
  }
}

void Pipe::read_some(int peer) {
  Peer& p = peers_[peer];
  while (p.fd) {
    bool in_header = p.header_read < sizeof p.header;
    char* into = in_header ? reinterpret_cast<char*>(&p.header) + p.header_read
                           : (p.target.request != nullptr ? p.target.data : p.early_data.data()) + p.payload_read;
    size_t bytes = in_header ? sizeof p.header - p.header_read : p.header.bytes - p.payload_read;
    ssize_t n = bytes == 0 ? 0 : recv(p.fd.get(), into, bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0 || (n == 0 && bytes > 0)) return lost(peer);
    (in_header ? p.header_read : p.payload_read) += static_cast<size_t>(n);
    if (p.header_read < sizeof p.header) continue;
    if (in_header) {  // header complete: choose the destination of the payload
      std::deque<Receive>& queue = p.waiting[p.header.tag];
      p.target = queue.empty() ? Receive{} : queue.front();
      if (queue.empty()) {
        p.early_data.resize(p.header.bytes);
      } else {
        queue.pop_front();
        check_size(peer, p.header.tag, p.target, p.header.bytes);
      }
      continue;
    }
    if (p.payload_read < p.header.bytes) continue;
    if (p.target.request != nullptr)
      --p.target.request->left;
    else
      p.early[p.header.tag].push_back(std::move(p.early_data));
    match(peer, p.header.tag);  // a receive may have been posted while its message was arriving in early_data
    p.early_data = {};
    p.target = {};
    p.header_read = p.payload_read = 0;
  }
}

bool Pipe::start(const prun_p2p& op, Request& request) {
  Peer& p = peers_[op.peer];
  auto* data = static_cast<char*>(op.ptr);
  if (op.is_recv != 0) {
    p.waiting[op.tag].push_back({data, op.bytes, &request});
    match(op.peer, op.tag);
    if (!p.fd && op.peer != rank) lost(op.peer);
  } else if (op.peer == rank) {
    p.early[op.tag].emplace_back(data, data + op.bytes);
    --request.left;
    match(rank, op.tag);
  } else {
    p.out.push_back({{op.tag, op.bytes}, data, 0, &request});
    if (!p.fd) lost(op.peer);
  }
  return true;
}

}  // namespace prun::pipe

const prun_transport* prun_transport_v1(const prun_host* host) {
  return prun::sdk::transport_table<prun::pipe::Pipe>(
      host, {.name = "pipe",
             .version = "1.0.0",
             .summary = "Unix sockets of one host, the smallest transport there is",
             .local_only = true});
}
