// All ranks executed abstractly: which ops have begun and ended, without time or data, under one class of transport.
//
// What blocks here blocks on every execution, whatever the timing: an op that can proceed stays able to. Surprising
// fact: mostly one rank per class suffices, because ranks of one class whose groups and peers are of the same classes
// move in step; a class may even send to itself (a ring), and then meets its own receive.
#pragma once
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "verify/view.h"

namespace prun::verify {

class AbstractRun {
 public:
  // `credits`: how many sends of a pair and lane may be on their way before their receives begin; 0 is a rendezvous.
  AbstractRun(const JobView& view, bool init, int credits);
  // Runs until nothing moves; true when everything ended.
  bool run();
  std::string circle() const;  // after a run that returned false: who waits for whom
  Site site() const;

 private:
  // What executes: a rank, or a class that stands for its ranks.
  struct Actor {
    const BodyView* body = nullptr;
    int rank = 0;
    std::vector<int> done;                // ops completed, by stream
    std::vector<bool> arrived;            // by stream: waits in a communication op for the others
    std::map<std::string, int> group_of;  // axis (as in Lane) -> which group
  };
  struct At {
    int actor, stream;
    auto operator<=>(const At&) const = default;
  };
  // Where messages travel: from an actor, so many ranks further along an axis.
  struct Channel {
    int sender, offset;
    Lane lane;
    auto operator<=>(const Channel&) const = default;
  };
  struct Traffic {
    std::deque<At> sends, receives, puts;  // blocked
    int on_the_way = 0, offers = 0;
  };

  bool one_actor_per_class(const JobView& view, const std::vector<std::string>& axes, bool init);
  void one_actor_per_rank(const JobView& view, const std::vector<std::string>& axes, bool init);
  bool peers_are_of_one_class(const JobView& view, bool init) const;
  void add_actor(const BodyView& body, int rank);
  void advance(int actor);
  bool begin(At at, const Op& op);  // true: it has completed
  bool send(At at, Traffic& traffic);
  bool receive(At at, Traffic& traffic);
  bool one_sided(At at, const Op& op, Traffic& traffic);
  bool offer(Traffic& traffic);
  void put(Traffic& traffic);
  void complete(At at);
  int group_size(const Actor& actor, const Lane& lane) const;
  int peer_of(const Actor& actor, const Op& op) const;  // an actor
  Channel channel_of(int actor, const Op& op) const;
  std::vector<At> walk() const;
  std::optional<At> blocker(At at) const;
  std::optional<At> carrier(int actor, const Op& partner, const Lane& lane) const;
  const Op& op_at(At at) const;

  const Job& job_;
  const Mesh& mesh_;
  int credits_;
  bool by_class_ = false;
  std::vector<Actor> actors_;
  std::map<std::pair<std::string, int>, std::vector<int>> members_;  // axis, group -> actors
  std::map<std::pair<int, Lane>, std::vector<At>> meetings_;
  std::map<Channel, Traffic> channels_;
  std::deque<int> ready_;
};

}  // namespace prun::verify
