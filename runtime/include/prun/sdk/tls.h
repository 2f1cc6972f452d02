// TLS 1.3 over a connected stream socket, with an external PSK instead of certificates.
//
// It sits between a framing layer and its descriptor: `read` and `write` behave like recv and sendmsg on a nonblocking
// socket, and both advance the handshake. The kernel encrypts outgoing data if it has kTLS; otherwise OpenSSL does,
// here. No close_notify is sent: a protocol that must distinguish an end from an attack sends the end as one of its own
// frames. Part of the library prun::sdk; link OpenSSL's libssl as well.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prun/sdk/failure.h"

struct ssl_st;

namespace prun::sdk {

class TlsStream {
 public:
  enum class Side { client, server };

  // `fd` is connected and nonblocking; it is not owned and must outlive this object. `key` belongs to this connection
  // alone. The client sends its first message at once. Throws Failure if OpenSSL has no TLS 1.3.
  TlsStream(int fd, Side side, std::span<const uint8_t, 32> key);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // A record's length is sent in the clear. If an attacker raises it, the reader waits for bytes that were never sent.
  // A sender that has been idle for a while therefore sends this many bytes of filler, which complete the record, so
  // that the reader detects the change.
  static constexpr size_t kFiller = 17 << 10;

  // Returns the number of bytes read; 0 = the peer has closed; -1 with errno otherwise. EBADMSG: received data differ
  // from the data sent. EREMOTEIO: the peer reports the same of data from here. trouble() has OpenSSL's text for both.
  // Without `fill` it reads nothing more from the socket: it drains bytes that are already buffered here, which epoll
  // cannot report.
  ssize_t read(void* to, size_t bytes, bool fill = true);
  // Returns the number of bytes handed to the kernel. After EAGAIN some bytes may have been encrypted already, so the
  // next call must begin with the same bytes.
  ssize_t write(std::span<const iovec> pieces);

  // Both ends have proved that they hold the key. It remains true after a later failure.
  bool established() const { return established_; }
  bool pending() const { return taken_ > 0; }  // bytes are encrypted that `write` has not reported yet
  bool by_kernel() const { return kernel_sends_; }
  const std::string& trouble() const { return trouble_; }

  void flip(uint64_t seed) { flip_ = seed; }  // flips a bit of the next output, for tests; not with kTLS
  void renew_keys_every(uint64_t records) { records_per_key_ = records; }

 private:
  friend struct TlsCallbacks;

  bool advance();  // the handshake
  bool flush();
  void take(std::span<const iovec> pieces);
  void encrypt(const char* from, size_t bytes);
  void encrypt_small();
  ssize_t failed(int result);

  const int fd_;
  const std::vector<uint8_t> key_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  bool kernel_sends_ = false, established_ = false;
  bool may_fill_ = false, ended_ = false;
  int error_ = 0;  // errno that ended the stream
  std::string trouble_;
  std::vector<char> out_;  // ciphertext; the first `sent_` bytes have been sent
  size_t sent_ = 0;
  size_t taken_ = 0;         // bytes of plaintext in out_
  std::vector<char> small_;  // small pieces, gathered into one record
  uint64_t records_ = 0, records_per_key_;
  std::optional<uint64_t> flip_;
};

// Returns whether the kernel encrypts sockets: the module tls is loaded, or is loaded on demand. Tests this once.
bool kernel_has_tls();

}  // namespace prun::sdk
