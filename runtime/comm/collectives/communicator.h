// Communicators over messages: of one rank, and over a transport.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives/algorithm.h"
#include "comm/collectives/wire.h"

namespace prun {

// The base of every communicator over messages: its wire, point to point, and the core's algorithms.
class MessageCommunicator : public Communicator {
 public:
  MessageCommunicator(Wire wire, std::string algorithm, AlgorithmCosts costs = {})
      : wire_(std::move(wire)), algorithm_(std::move(algorithm)), costs_(std::move(costs)) {}
  int index() const override { return wire_.index(); }
  int size() const override { return wire_.size(); }
  int64_t bytes_sent() const override { return wire_.bytes_sent(); }
  void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) override;

 protected:
  // Runs `body`. If it throws, no message of this call accesses memory afterwards.
  template <class Body>
  void guarded(Body body) {
    try {
      body();
    } catch (...) {
      give_up();
      throw;
    }
  }
  virtual void give_up() { wire_.give_up(); }
  const Algorithm& algorithm_of(const PreparedCall& call) const {
    return call.algorithm != nullptr ? *call.algorithm : choose_algorithm(call, size(), algorithm_, costs_);
  }
  // Returns the core's algorithm for a call like this one; `why` opens the explanation.
  CollPath core_path(const CollCall& call, const std::string& why) const;

  Wire wire_;
  Scratch scratch_;
  const std::string algorithm_;  // WorldOptions::algorithm
  const AlgorithmCosts costs_;
  uint64_t sequence_ = 0;  // number of the core's next collective
};

// Distinguishes groups in frames.
uint64_t group_hash(const std::vector<int>& ranks, int number);

// `tag` is a tag of the transport that the members agreed on and no other communicator uses. If `algorithm` is set, the
// plugin's own collectives are not used.
std::unique_ptr<Communicator> make_communicator(TransportSession& session, const std::vector<int>& ranks, int index,
                                                int tag, const std::string& algorithm, const AlgorithmCosts& costs = {},
                                                bool several_hosts = false);
// A group of one: no messages, no transport.
std::unique_ptr<Communicator> make_lone_communicator();

// Returns the first of `count` tags of the transport that no member uses yet. Collective over the members; `lane` is
// the communicator's, for the error text.
int agree_on_tags(TransportSession& session, const std::vector<int>& ranks, int index, int lane, int count);

}  // namespace prun
