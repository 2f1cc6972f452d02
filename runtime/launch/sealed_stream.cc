// The layout of a message. Message n of a direction has nonce n, because keys are used for one connection only:
//
//     | length, 4 bytes, associated data | ciphertext, length bytes | tag, 16 bytes |
#include "launch/sealed_stream.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "launch/secret.h"
#include "launch/tcp.h"

namespace prun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNonce = 32, kTag = 16;
constexpr int kMostStrangers = 64;   // unauthenticated connections
constexpr double kProveSeconds = 2;  // limit for each peer to authenticate
constexpr int kLookForEndMs = 100;

struct Introduction {
  uint32_t from;
  char nonce[kNonce];
};

Error lost(const std::string& what) {
  Error error(Exit::corrupt_link, fmt::format("a stream of copies in memory {}", what));
  error.effect = true;  // most likely its rank has ended
  return error;
}

std::string key_of(const RankPlace& place, uint32_t from, int to, std::string_view theirs, std::string_view ours,
                   const char* direction) {
  const std::string key = hmac_sha256(place.job_secret, fmt::format("copies {} {} {}", from, to, place.job_id));
  return hmac_sha256(key, std::string(direction).append(theirs).append(ours));
}

std::string port_of(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  return std::to_string(ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                            : reinterpret_cast<sockaddr_in&>(address).sin_port));
}

}  // namespace

SealedStream::SealedStream(Fd fd, std::string send_key, std::string receive_key, Cancelled cancelled)
    : fd_(std::move(fd)),
      send_key_(std::move(send_key)),
      receive_key_(std::move(receive_key)),
      cancelled_(std::move(cancelled)) {}

// Returns false if the peer has closed before the first byte.
bool SealedStream::move_all(bool sending, char* data, size_t bytes, double limit_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(limit_s);
  for (size_t moved = 0; moved < bytes;) {
    if (cancelled_()) throw lost("is not needed any more");
    if (limit_s > 0 && Clock::now() > end) throw lost("said nothing in time");
    pollfd ready{fd_.get(), static_cast<short>(sending ? POLLOUT : POLLIN), 0};
    if (poll(&ready, 1, kLookForEndMs) <= 0) continue;
    const ssize_t n = sending ? ::send(fd_.get(), data + moved, bytes - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : ::recv(fd_.get(), data + moved, bytes - moved, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n == 0 && !sending && moved == 0) return false;
    if (n <= 0) throw lost(fmt::format("has ended: {}", n == 0 ? "the peer closed it" : std::strerror(errno)));
    moved += n;
  }
  return true;
}

std::string SealedStream::crypt(bool seal, uint64_t number, std::string_view head, std::string_view text) const {
  const auto bytes = [](std::string_view s) { return reinterpret_cast<const unsigned char*>(s.data()); };
  unsigned char nonce[12] = {};
  std::memcpy(nonce, &number, sizeof number);
  const std::string_view body = seal ? text : text.substr(0, text.size() - kTag);
  std::string out(body.size() + (seal ? kTag : 0), '\0');
  auto* to = reinterpret_cast<unsigned char*>(out.data());
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(),
                                                                                &EVP_CIPHER_CTX_free);
  int done = 0, size = body.size();
  bool good = EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, bytes(seal ? send_key_ : receive_key_),
                                nonce, seal ? 1 : 0) == 1 &&
              EVP_CipherUpdate(context.get(), nullptr, &done, bytes(head), head.size()) == 1 &&
              EVP_CipherUpdate(context.get(), to, &done, bytes(body), size) == 1;
  if (good && !seal)
    good = EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTag,
                               const_cast<char*>(text.data() + body.size())) == 1;
  good = good && EVP_CipherFinal_ex(context.get(), to + done, &done) == 1;
  if (good && seal) good = EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTag, to + size) == 1;
  if (!good) throw lost(seal ? "cannot be sealed" : "was changed in transit, or comes from a process outside the job");
  return out;
}

void SealedStream::send(std::string_view message) {
  PRUN_CHECK(message.size() <= kMost, fmt::format("a message of {} bytes", message.size()));
  const uint32_t size = static_cast<uint32_t>(message.size());
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  out += crypt(true, sent_++, out, message);
  move_all(true, out.data(), out.size(), 0);
}

bool SealedStream::receive(std::string& message, double limit_s) {
  uint32_t size = 0;
  if (!move_all(false, reinterpret_cast<char*>(&size), sizeof size, limit_s)) return false;
  if (size > kMost) throw lost("was changed in transit, or comes from a process outside the job");
  std::string in(size + kTag, '\0');
  if (!move_all(false, in.data(), in.size(), limit_s)) throw lost("has ended: the peer closed it");
  message = crypt(false, received_++, {reinterpret_cast<const char*>(&size), sizeof size}, in);
  return true;
}

SealedListener::SealedListener(const RankPlace& place, const std::string& host, const std::string& ports, Serve serve)
    : place_(place), serve_(std::move(serve)) {
  int first = 0, last = 0;
  if (const size_t colon = ports.find(':'); colon != std::string::npos) {
    first = std::stoi(ports.substr(0, colon));
    last = std::stoi(ports.substr(colon + 1));
  }
  const int count = last - first + 1;
  for (int i = 0; !listener_; ++i) try {
      listener_ = listen_on({host, std::to_string(first + (place.local_rank + i) % count), false});
    } catch (const Error&) {
      if (i + 1 >= count) throw;
    }
  address_ = Packer().text(host).text(port_of(listener_.get())).take();
  accepting_ = std::thread([this] { accept_all(); });
}

SealedListener::~SealedListener() {
  stopping_ = true;
  accepting_.join();
  while (connections_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void SealedListener::accept_all() {
  while (!stopping_) {
    pollfd ready{listener_.get(), POLLIN, 0};
    if (poll(&ready, 1, kLookForEndMs) <= 0) continue;
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd || strangers_ >= kMostStrangers) continue;
    ++connections_;
    ++strangers_;
    std::thread([this, guest = std::make_shared<Fd>(std::move(fd))] {
      bool stranger = true;
      admit(std::move(*guest), stranger);
      if (stranger) --strangers_;
      --connections_;
    }).detach();
  }
}

void SealedListener::admit(Fd fd, bool& stranger) try {
  const std::string ours = random_bytes(kNonce);
  const timeval limit{static_cast<time_t>(kProveSeconds), 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Introduction theirs;
  const bool spoke = ::send(fd.get(), ours.data(), ours.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(kNonce) &&
                     recv(fd.get(), &theirs, sizeof theirs, MSG_WAITALL) == static_cast<ssize_t>(sizeof theirs);
  if (!spoke) return;
  const std::string_view nonce(theirs.nonce, kNonce);
  SealedStream stream(std::move(fd), key_of(place_, theirs.from, place_.rank, nonce, ours, "acceptor"),
                      key_of(place_, theirs.from, place_.rank, nonce, ours, "dialler"),
                      [this] { return stopping_.load(); });
  if (std::string hello; !stream.receive(hello, kProveSeconds)) return;
  stranger = false;
  --strangers_;
  serve_(stream);
} catch (const std::exception&) {  // a stranger, or a rank that has ended, which reports itself
}

SealedStream dial(const RankPlace& from, int to, const std::string& address, SealedStream::Cancelled cancelled) {
  Unpacker unpacker(address);
  HostPort at;
  at.host = unpacker.text();
  at.port = unpacker.text();
  std::string why = "it does not answer", theirs(kNonce, '\0');
  Fd fd = connect_to(at, std::chrono::seconds(5), &why);
  if (!fd) throw lost(fmt::format("to rank {} at {}:{} cannot be made: {}", to, at.host, at.port, why));
  set_tcp_options(fd.get(), 5);
  if (recv(fd.get(), theirs.data(), kNonce, MSG_WAITALL) != static_cast<ssize_t>(kNonce))
    throw lost(fmt::format("to rank {} at {}:{} cannot be made: no answer", to, at.host, at.port));
  Introduction ours{static_cast<uint32_t>(from.rank), {}};
  const std::string nonce = random_bytes(kNonce);
  std::memcpy(ours.nonce, nonce.data(), kNonce);
  if (::send(fd.get(), &ours, sizeof ours, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof ours))
    throw lost(fmt::format("to rank {} cannot be made: {}", to, std::strerror(errno)));
  SealedStream stream(std::move(fd), key_of(from, ours.from, to, nonce, theirs, "dialler"),
                      key_of(from, ours.from, to, nonce, theirs, "acceptor"), std::move(cancelled));
  stream.send("hello");
  return stream;
}

}  // namespace prun
