// Both ends of a new connection prove that they know the job secret before anything else is read.
//
//     dialler                                   acceptor
//        ── hello (rank, nonce) ──────────────────►      fixed size, nothing in it is believed yet
//        ◄── hello (rank, nonce), HMAC "acceptor" ──
//        ── HMAC "dialler" ───────────────────────►      now the acceptor believes the dialler
//        ◄── HMAC "welcome" ───────────────────────      now the dialler knows that it is in
//
// Each HMAC-SHA256 is over its label and both hellos, so it holds for these nonces, ranks, job and version only and
// cannot be replayed or reflected. No length is ever read from the peer.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "poller.h"
#include "request.h"

namespace prun_socket {

using Secret = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

struct Hello {
  std::array<char, 8> magic{};
  uint32_t byte_order = 0;
  uint32_t version = 0;  // of this protocol
  int32_t from = -1, to = -1;
  int32_t ranks = 0;
  int32_t index = 0;  // of the connection between the two
  std::array<char, 40> job{};
  std::array<uint8_t, 32> nonce{};
};
static_assert(sizeof(Hello) == 104);

struct Identity {  // what this rank says in its hellos
  int rank = 0, ranks = 1;
  std::array<char, 40> job{};
  Secret secret{};
};

class Handshake : public EventSource {
 public:
  enum class State { running, done, refused };

  // As the dialler (rank and index say to whom) or, with to = -1, as the acceptor.
  Handshake(Descriptor socket, bool tcp, const Identity& identity, int to, int index, Poller& poller);
  ~Handshake() override;

  void on_event(uint32_t events) override;
  State state() const { return state_; }
  const std::string& why_refused() const { return why_; }
  int error() const { return error_; }  // errno, 0: refused for another reason
  bool dialler() const { return to_ >= 0; }
  bool tcp() const { return tcp_; }
  Clock::time_point begun() const { return begun_; }
  // Once done: the peer and the connection's index; release gives the socket up.
  int peer() const { return dialler() ? to_ : theirs_.from; }
  int index() const { return dialler() ? index_ : theirs_.index; }
  Descriptor release();

 private:
  enum class Step { connecting, send_hello, read_hello, send_answer, read_mac, send_mac, read_welcome, send_welcome };

  bool advance();  // one step; false: would block, or ended
  bool transfer(bool sending, void* data, size_t bytes);
  bool finish_connecting();
  bool hello_is_sane();
  Mac mac(const char* label) const;
  bool proves(const char* label, const Mac& theirs);
  void refuse(std::string why, int error = 0);

  Descriptor socket_;
  const bool tcp_;
  const Identity& identity_;
  const int to_, index_;
  Poller& poller_;
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

}  // namespace prun_socket
