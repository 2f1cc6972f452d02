// OpenSSL's records go through a custom BIO: one send, which raises no signal, writes many of them, and one recv reads
// all that have arrived. OpenSSL writes to the socket itself only if the kernel encrypts.
#include "prun/sdk/tls.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "prun/sdk/descriptor.h"

namespace prun::sdk {
namespace {

constexpr size_t kRecord = 16 << 10;      // the largest TLS record
constexpr size_t kMostTaken = 128 << 10;  // limit of one write, so that its data remain in the L2 cache
constexpr size_t kReadAhead = 128 << 10;
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr std::string_view kIdentity = "prun";
// RFC 8446, 5.5: AES-GCM keeps its safety margin for 2^24.5 records per key.
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 23;

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

[[noreturn]] void no_tls(const char* what) {
  const unsigned long error = ERR_get_error();
  throw Failure(PRUN_ESYSTEM, concat("TLS 1.3 (", what, "): ", error ? ERR_reason_error_string(error) : "not there"));
}

// The socket's BIO writes with write(2), which raises SIGPIPE after the peer has closed.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec now{};
    const int error = errno;
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

}  // namespace

struct TlsCallbacks {
  static TlsStream& stream(BIO* bio) { return *static_cast<TlsStream*>(BIO_get_data(bio)); }
  static TlsStream& stream(SSL* ssl) { return *static_cast<TlsStream*>(SSL_get_app_data(ssl)); }

  static int write(BIO* bio, const char* from, int bytes) {
    TlsStream& self = stream(bio);
    BIO_clear_retry_flags(bio);
    self.out_.insert(self.out_.end(), from, from + bytes);
    ++self.records_;
    return bytes;
  }

  static int read(BIO* bio, char* to, int bytes) {
    TlsStream& self = stream(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got = -1;
    errno = EAGAIN;
    if (self.may_fill_) do {
        got = ::recv(self.fd_, to, static_cast<size_t>(bytes), MSG_DONTWAIT);
      } while (got < 0 && errno == EINTR);
    if (got == 0) self.ended_ = true;
    if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    if (got < 0 && errno != EAGAIN) self.error_ = errno;
    return static_cast<int>(got);
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static SSL_SESSION* session(SSL* ssl) {
    SSL_SESSION* session = SSL_SESSION_new();
    const std::vector<uint8_t>& key = stream(ssl).key_;
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipher);
    if (session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
      return session;
    SSL_SESSION_free(session);
    return nullptr;
  }

  static int offer(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes, SSL_SESSION** session_out) {
    *session_out = session(ssl);
    *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
    *bytes = kIdentity.size();
    return *session_out != nullptr ? 1 : 0;
  }

  static int find(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session_out) {
    const bool ours = std::string_view(reinterpret_cast<const char*>(identity), bytes) == kIdentity;
    *session_out = ours ? session(ssl) : nullptr;
    return ours && *session_out == nullptr ? 0 : 1;
  }
};

namespace {

const BIO_METHOD* our_bio() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "prun");
    if (made == nullptr) no_tls("BIO_meth_new");
    BIO_meth_set_write(made, TlsCallbacks::write);
    BIO_meth_set_read(made, TlsCallbacks::read);
    BIO_meth_set_ctrl(made, TlsCallbacks::control);
    BIO_meth_set_create(made, TlsCallbacks::create);
    return made;
  }();
  return method;
}

// Shared by both sides, and never freed.
SSL_CTX* context() {
  static SSL_CTX* const made = [] {
    SSL_CTX* ctx = SSL_CTX_new(TLS_method());
    if (ctx == nullptr || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") != 1)
      no_tls("its context");
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, kReadAhead);
    SSL_CTX_set_psk_use_session_callback(ctx, TlsCallbacks::offer);
    SSL_CTX_set_psk_find_session_callback(ctx, TlsCallbacks::find);
#ifdef SSL_OP_ENABLE_KTLS
    if (kernel_has_tls()) SSL_CTX_set_options(ctx, SSL_OP_ENABLE_KTLS);
#endif
    return ctx;
  }();
  return made;
}

}  // namespace

TlsStream::TlsStream(int fd, Side side, std::span<const uint8_t, 32> key)
    : fd_(fd),
      key_(key.begin(), key.end()),
      ssl_(SSL_new(context()), [](SSL* ssl) { SSL_free(ssl); }),
      records_per_key_(kRecordsPerKey) {
  BIO* const ours = ssl_ ? BIO_new(our_bio()) : nullptr;
  if (ours == nullptr) no_tls("SSL_new");
  BIO_set_data(ours, this);
  SSL_set_app_data(ssl_.get(), this);
  SSL_set0_rbio(ssl_.get(), ours);
  BIO* const socket = kernel_has_tls() ? BIO_new_socket(fd, BIO_NOCLOSE) : nullptr;
  if (socket == nullptr) BIO_up_ref(ours);
  SSL_set0_wbio(ssl_.get(), socket != nullptr ? socket : ours);
  if (side == Side::server) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);  // rejects a certificate in place of the key
  SSL_set_connect_state(ssl_.get());
  advance();
}

TlsStream::~TlsStream() = default;

bool TlsStream::advance() {
  if (established_) return true;
  const NoBrokenPipe quiet;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) failed(result);
  established_ = result == 1;  // OpenSSL resets its own state when a later record is invalid
#ifdef BIO_get_ktls_send
  kernel_sends_ = result == 1 && BIO_get_ktls_send(SSL_get_wbio(ssl_.get()));
#endif
  const int why = errno;
  flush();
  errno = why;
  return result == 1;
}

// Translates a failed call of OpenSSL to a return value and errno.
ssize_t TlsStream::failed(int result) {
  if (ended_ && error_ == 0) return 0;
  if (error_ != 0) {
    errno = error_;
    return -1;
  }
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      if (errno == 0 || errno == EAGAIN) errno = EPIPE;
      return -1;
    default:
      break;
  }
  const unsigned long error = ERR_get_error();
  const char* const words = ERR_reason_error_string(error);
  trouble_ = words != nullptr ? words : "TLS failed";
  errno = error_ = ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET ? EREMOTEIO : EBADMSG;
  return -1;
}

ssize_t TlsStream::read(void* to, size_t bytes, bool fill) {
  may_fill_ = fill;
  if (!advance()) return ended_ ? 0 : -1;
  size_t total = 0;
  while (total < bytes) {
    may_fill_ = fill && total == 0;  // drain data that have arrived; wait for no more
    size_t got = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(ssl_.get(), static_cast<char*>(to) + total, bytes - total, &got);
    if (result != 1) {
      const ssize_t none = failed(result);
      const int why = errno;
      flush();  // sends OpenSSL's alert
      errno = why;
      if (total > 0) break;  // the next call reports the error
      return none;
    }
    total += got;
  }
  return static_cast<ssize_t>(total);
}

ssize_t TlsStream::write(std::span<const iovec> pieces) {
  may_fill_ = true;
  if (!advance()) {
    if (ended_) errno = EPIPE;
    return -1;
  }
  if (kernel_sends_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return ::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (taken_ == 0) take(pieces);
  if (error_ != 0) {
    errno = error_;
    return -1;
  }
  if (!flush()) return -1;
  return static_cast<ssize_t>(std::exchange(taken_, 0));
}

// Small pieces, such as headers, share a record with the data after them.
void TlsStream::take(std::span<const iovec> pieces) {
  if (records_ >= records_per_key_) {
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);  // sent before the next record
    records_ = 0;
  }
  for (const iovec& piece : pieces) {
    const char* from = static_cast<const char*>(piece.iov_base);
    size_t left = std::min(piece.iov_len, kMostTaken - taken_);
    taken_ += left;
    while (left > 0) {
      size_t part = left - left % kRecord;
      if (small_.empty() && part > 0) {
        encrypt(from, part);
      } else {
        part = std::min(left, kRecord - small_.size());
        small_.insert(small_.end(), from, from + part);
        if (small_.size() == kRecord) encrypt_small();
      }
      from += part;
      left -= part;
    }
  }
  if (!small_.empty()) encrypt_small();
}

void TlsStream::encrypt_small() {
  encrypt(small_.data(), small_.size());
  small_.clear();
}

void TlsStream::encrypt(const char* from, size_t bytes) {
  size_t done = 0;
  ERR_clear_error();
  const int result = SSL_write_ex(ssl_.get(), from, bytes, &done);
  if (result != 1) failed(result);
}

// Returns false, with errno, if some data could not be sent.
bool TlsStream::flush() {
  char* flipped = nullptr;
  if (flip_ && sent_ < out_.size()) {
    flipped = &out_[sent_ + (*flip_ >> 8) % std::min<size_t>(out_.size() - sent_, 4096)];
    *flipped = static_cast<char>(*flipped ^ 1 << (*flip_ >> 32) % 8);
    flip_.reset();
  }
  while (sent_ < out_.size()) {
    const ssize_t put = ::send(fd_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    sent_ += static_cast<size_t>(put);
  }
  out_.clear();
  sent_ = 0;
  return true;
}

bool kernel_has_tls() {
  static const bool there = [] {
    Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    return listener && client && ::bind(listener.get(), any, length) == 0 && ::listen(listener.get(), 1) == 0 &&
           ::getsockname(listener.get(), any, &length) == 0 && ::connect(client.get(), any, length) == 0 &&
           ::setsockopt(client.get(), IPPROTO_TCP, TCP_ULP, "tls", 3) == 0;
  }();
  return there;
}

}  // namespace prun::sdk
