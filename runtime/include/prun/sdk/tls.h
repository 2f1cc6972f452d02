// TLS 1.3 over a connected stream socket, with a key that both ends know (an external PSK) in place of certificates.
//
// It stands between a framing and its descriptor: `read` and `write` are the recv and sendmsg of a socket that does not
// block, and the handshake goes on inside both. What is sent is encrypted by the kernel where it has TLS for sockets
// (kTLS), else here, by OpenSSL. No close_notify is sent: who must tell an end from an attack says it in a frame. The
// library prun::sdk has it; link OpenSSL's libssl beside it.
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

  // `fd` is connected, nonblocking, and outlives this, which does not own it. `key` is of this connection alone. The
  // client's first words leave at once. Throws Failure where OpenSSL has no TLS 1.3.
  TlsStream(int fd, Side side, std::span<const uint8_t, 32> key);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // A record says its length in the clear: where that was changed, a reader waits for bytes that nobody has sent. An
  // end that has sent nothing for a while sends so many bytes that mean nothing; then the reader finds it.
  static constexpr size_t kFiller = 17 << 10;

  // Bytes; 0: the peer has closed; -1 and errno. EBADMSG: what came is not what the peer sent; EREMOTEIO: the peer says
  // that of what it got; trouble() has OpenSSL's words for both. Without `fill` nothing more is taken from the socket:
  // what epoll does not tell, since it lies here already, is read to its end that way.
  ssize_t read(void* to, size_t bytes, bool fill = true);
  // Bytes that are in the kernel's hands. EAGAIN: some of them may have been taken, so the next call begins with the
  // same bytes.
  ssize_t write(std::span<const iovec> pieces);

  // Both ends have shown that they have the key; so it stays, whatever comes later.
  bool established() const { return established_; }
  bool pending() const { return taken_ > 0; }  // bytes were taken that `write` has not told of
  bool by_kernel() const { return kernel_sends_; }
  const std::string& trouble() const { return trouble_; }

  void flip(uint64_t seed) { flip_ = seed; }  // a bit of what is sent next, for tests; not where the kernel encrypts
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
  int error_ = 0;  // that ended it
  std::string trouble_;
  std::vector<char> out_;  // encrypted; the first `sent_` bytes have left
  size_t sent_ = 0;
  size_t taken_ = 0;         // plain bytes that are in out_
  std::vector<char> small_;  // pieces that share a record
  uint64_t records_ = 0, records_per_key_;
  std::optional<uint64_t> flip_;
};

// This kernel encrypts for sockets: the module tls is there, or is loaded on demand. Asked once.
bool kernel_has_tls();

}  // namespace prun::sdk
