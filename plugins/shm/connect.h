// Exchange of memory between the ranks of one host: descriptors over abstract Unix sockets.
//
//   higher rank (dials)                      lower rank (listens on a random name)
//     | -- connect, SO_PEERCRED ----------------> |   same user on both ends
//     | <-- handshake: proofs of the secret ----> |   prun/sdk/handshake.h
//     | <-- Offer: sizes, descriptors ----------> |   both map the other's memory
//     |     the socket remains open               |   its end reports the death of a rank
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
  // Listens. Repeated calls return the same address.
  std::string address();
  bool listens() const { return static_cast<bool>(listener_); }
  // Makes progress without blocking. PRUN_AGAIN names the missing rank.
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
    int before = 0;  // number of previous attempts
  };
  struct Link {  // connection to a peer, until the exchange is complete
    sdk::Handshake handshake;
    Dial dial;               // set on the dialling side
    sdk::Descriptor socket;  // set once both ends are authenticated
    bool dropped = false;
  };

  void start(const sdk::Blobs& blobs);
  bool dial(const Dial& to);  // returns false if the peer's backlog is full for the moment
  void accept_all();
  void advance_all();
  bool advance(Link& link);  // returns true when the link is finished
  bool take_offer(Link& link);
  void map(Peer& peer, const Offer& offer, std::vector<sdk::Descriptor>& fds);
  void send_offer(Link& link);
  void drop(Link& link, const std::string& why);

  Context& c_;
  const sdk::Identity identity_;
  std::string name_;  // name of the listener
  const sdk::HostId host_ = sdk::this_host();
  sdk::Descriptor listener_;
  bool started_ = false;
  int others_ = 0;  // connections of other users, which are dropped
  std::list<Link> links_;
  // Dials to make: first attempts, and repeats after a full backlog or after the peer dropped this rank.
  std::vector<Dial> to_dial_;
  std::chrono::seconds silence_{};
};

}  // namespace prun::shm
