// Both ends of a new connection prove that they hold the job secret before anything else is read.
//
//     dialler                                   acceptor
//        ── hello (rank, nonce) ──────────────────►      fixed size, not trusted yet
//        ◄── hello (rank, nonce), HMAC "acceptor" ──
//        ── HMAC "dialler" ───────────────────────►      the acceptor now trusts the dialler
//        ◄── HMAC "welcome" ───────────────────────      the dialler is now accepted
//
// Each HMAC-SHA256 covers its label and both hellos, so it is valid for these nonces, ranks, job and version only and
// cannot be replayed or reflected. No length is ever read from the peer. The higher of two ranks dials. Part of the
// library prun::sdk; link OpenSSL's libcrypto as well.
#pragma once
#include <prun/transport.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "prun/sdk/descriptor.h"

namespace prun::sdk {

using Secret = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

struct Hello {
  std::array<char, 8> magic{};
  uint32_t byte_order = 0;
  uint32_t version = 0;  // version of this protocol
  int32_t from = -1, to = -1;
  int32_t ranks = 0;
  int32_t index = 0;  // number of the connection between these two ranks
  std::array<char, 40> job{};
  std::array<uint8_t, 32> nonce{};
};
static_assert(sizeof(Hello) == 104);

// The fields of a rank's hellos, and its secret.
struct Identity {
  explicit Identity(const prun_open_params& params);
  int rank, ranks;
  std::array<char, 40> job;
  Secret secret;
};

// Returns the time that an accepted connection has for its proof: 2 s per rank that a core serves, because hundreds of
// ranks on one core legitimately answer later than that.
std::chrono::seconds longest_silence(int ranks_of_this_host);

class Handshake {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { running, done, refused };

  // Runs over a nonblocking stream or SOCK_SEQPACKET socket, which may still be connecting. `to` >= 0: as the dialler
  // of rank `to`; -1: as the acceptor. `identity` must outlive it. Throws Failure.
  Handshake(Descriptor socket, const Identity& identity, int to, int index = 0);

  State advance();     // advances as far as possible without blocking
  bool reads() const;  // waits to read; otherwise it waits to write
  State state() const { return state_; }
  const std::string& why_refused() const { return why_; }
  int error() const { return error_; }  // errno; ECONNRESET = the peer hung up; 0 = refused for another reason
  bool dialler() const { return to_ >= 0; }
  Clock::time_point begun() const { return begun_; }
  int fd() const { return socket_.get(); }
  // Valid once done: the peer and the connection's index. release transfers the socket.
  int peer() const { return dialler() ? to_ : theirs_.from; }
  int index() const { return dialler() ? index_ : theirs_.index; }
  Descriptor release() { return std::move(socket_); }
  Mac encryption_key() const { return mac("encryption"); }  // key of this connection alone, equal at both ends

 private:
  enum class Step { connecting, send_hello, read_hello, send_answer, read_mac, send_mac, read_welcome, send_welcome };

  bool step();  // false: it would block, or has ended
  bool transfer(bool sending, void* data, size_t bytes);
  bool finish_connecting();
  bool hello_is_sane();
  Mac mac(const char* label) const;
  bool proves(const char* label, const Mac& theirs);
  void refuse(std::string why, int error = 0);

  Descriptor socket_;
  const Identity& identity_;
  const int to_, index_;
  Step step_;
  State state_ = State::running;
  std::string why_;
  int error_ = 0;
  const Clock::time_point begun_ = Clock::now();
  size_t moved_ = 0;  // bytes of the current step
  Hello ours_, theirs_;
  struct {
    Hello hello;
    Mac mac;
  } answer_;
  Mac mac_{};
};

}  // namespace prun::sdk
