// How ranks of one host find each other's memory: descriptors over abstract Unix sockets.
//
// The address names the host and a socket with a random name. The higher rank connects to the lower one, of the same
// user; both prove that they know the job's secret (prun/sdk/handshake.h) before a descriptor moves. The sockets stay
// open: their end is how a rank's death is noticed.
#pragma once
#include <chrono>
#include <list>
#include <string>
#include <vector>

#include "context.h"
#include "prun/sdk/handshake.h"
#include "prun/sdk/host.h"

namespace prun::shm {

class Connector {
 public:
  Connector(Context& context, const prun_open_params& params) : c_(context), identity_(params) {}
  // Listens. May be called again: the address is the same.
  std::string address();
  bool listens() const { return static_cast<bool>(listener_); }
  // One round without blocking: PRUN_AGAIN and who is missing.
  Failure connect(const sdk::Blobs& blobs);

 private:
  static constexpr uint32_t kMagic = 0x6d687370;  // "pshm"
  struct Address {
    uint32_t magic = kMagic, layout = kLayoutVersion;
    int32_t rank = -1, pid = 0;
    sdk::HostId host;
    char name[80] = {};
  };
  struct Offer;
  struct Dial {
    Address address;
    int before = 0;  // how often it was dialled
  };
  struct Link {  // with a peer, until it has all that it needs
    sdk::Handshake handshake;
    Dial dial;               // the dialler's
    sdk::Descriptor socket;  // once each end has proved itself
    bool dropped = false;
  };

  void start(const sdk::Blobs& blobs);
  bool dial(const Dial& to);  // false: the peer's backlog is full for the moment
  void accept_all();
  void advance_all();
  bool advance(Link& link);  // true: nothing is left to do with it
  bool take_offer(Link& link);
  void map(Peer& peer, const Offer& offer, std::vector<sdk::Descriptor>& fds);
  void send_offer(Link& link);
  void drop(Link& link, const std::string& why);

  Context& c_;
  const sdk::Identity identity_;
  std::string name_;  // of the listener
  const sdk::HostId host_ = sdk::this_host();
  sdk::Descriptor listener_;
  bool started_ = false;
  int others_ = 0;  // connections of other users
  std::list<Link> links_;
  std::vector<Dial> to_dial_;  // for the first time, since its backlog was full, or since it cut this rank off
  std::chrono::seconds silence_{};
};

}  // namespace prun::shm
