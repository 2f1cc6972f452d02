// Connects every pair of ranks: the higher rank dials, the lower one accepts, both authenticate.
//
// A dialler that is dropped dials again, so that a crowd of strangers can delay a rank but not keep it out. Who
// does not prove itself within 2 s is dropped and counted, and listening goes on until all ranks are connected.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "address.h"
#include "handshake.h"
#include "match.h"

namespace prun_socket {

class Join {
 public:
  Join(const Identity& identity, const Options& options, Listeners listeners, Poller& poller, Matcher& matcher);
  ~Join();

  const Address& address() const { return listeners_.address; }
  // Nonblocking. True once every peer is connected. Throws Failure.
  bool step(const void* const* blobs, const size_t* bytes);
  Failure missing() const;      // PRUN_AGAIN and who is missing
  std::string summary() const;  // once connected, for the log
  uint64_t strangers() const { return strangers_; }

 private:
  struct Listener : EventSource {
    Join* join = nullptr;
    int fd = -1;
    bool tcp = false;
    void on_event(uint32_t) override { join->accept_all(*this); }
  };
  struct Dial {  // one connection that this rank has to open
    int peer, index;
    std::unique_ptr<Handshake> handshake;
    Clock::time_point next{};
    std::string trouble;  // of the last try
    bool connected = false;
  };

  void read_addresses(const void* const* blobs, const size_t* bytes);
  void accept_all(Listener& listener);
  void dial(Dial& dial);
  void look_after(Dial& dial);
  void look_after_accepted();
  void establish(Handshake& handshake);
  void drop_stranger(size_t index);

  const Identity& identity_;
  const Options& options_;
  Listeners listeners_;
  Poller& poller_;
  Matcher& matcher_;
  Listener unix_listener_, tcp_listener_;
  std::vector<Address> addresses_;
  std::vector<Dial> dials_;
  std::vector<std::unique_ptr<Handshake>> accepted_;
  std::string congestion_;
  int over_unix_ = 0, over_tcp_ = 0;
  uint64_t strangers_ = 0;
};

}  // namespace prun_socket
