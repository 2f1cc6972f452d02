// Connects every pair of ranks: the higher rank dials, the lower one accepts, both authenticate.
//
// A peer that does not authenticate within `silence` is dropped and counted, and listening continues until all ranks
// are connected. A dropped dialler dials again, so a flood of unauthenticated connections can delay a rank but not
// exclude it.
#pragma once
#include <prun/sdk/handshake.h>
#include <prun/sdk/transport.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "address.h"
#include "match.h"

namespace prun::socket {

using sdk::Identity;

// The handshake of one connection as an event source.
class Greeting : public EventSource {
 public:
  Greeting(Descriptor socket, bool tcp, const Identity& identity, int to, int index, Poller& poller);
  ~Greeting() override;
  void on_event(uint32_t events) override;
  Descriptor release();
  const sdk::Handshake& state() const { return handshake_; }
  bool tcp() const { return tcp_; }

 private:
  sdk::Handshake handshake_;
  const bool tcp_;
  Poller& poller_;
};

class Connector {
 public:
  Connector(const Identity& identity, const Options& options, Listeners listeners, std::chrono::seconds silence,
            Poller& poller, Matcher& matcher);
  ~Connector();

  const Address& address() const { return listeners_.address; }
  // Makes progress without blocking. Returns true once every peer is connected. Throws Failure.
  bool step(const sdk::Blobs& blobs);
  Failure missing() const;  // PRUN_AGAIN with the missing ranks
  std::string protection() const;
  std::string summary() const;  // log line, once connected
  uint64_t strangers() const { return strangers_; }
  bool all_ready() const;

 private:
  struct Listener : EventSource {
    Connector* connector = nullptr;
    int fd = -1;
    bool tcp = false;
    void on_event(uint32_t) override { connector->accept_all(*this); }
  };
  struct Dial {  // one connection that this rank has to open
    int peer, index;
    std::unique_ptr<Greeting> greeting;
    Clock::time_point next{};
    std::string trouble;  // error of the last attempt
    bool connected = false;
    Clock::time_point connected_at{};
  };

  void read_addresses(const sdk::Blobs& blobs);
  void accept_all(Listener& listener);
  Failure refused(int peer, bool tcp) const;
  std::string trouble(int rank, bool& silent) const;
  void take_rejection(int peer, int error);
  void dial(Dial& dial);
  void look_after(Dial& dial);
  void look_after_encryption();
  void look_after_accepted();
  void establish(Greeting& greeting);

  const Identity& identity_;
  const Options& options_;
  Listeners listeners_;
  const std::chrono::seconds silence_;
  Poller& poller_;
  Matcher& matcher_;
  Listener unix_listener_, tcp_listener_;
  std::vector<Address> addresses_;
  std::vector<Dial> dials_;
  std::vector<std::unique_ptr<Greeting>> accepted_;
  std::string congestion_;
  int over_unix_ = 0, over_tcp_ = 0;
  bool far_ = false;  // a connection leads to a far peer
  uint64_t strangers_ = 0;
  std::optional<Clock::time_point> rejected_;  // time of the network's first rejection
};

}  // namespace prun::socket
