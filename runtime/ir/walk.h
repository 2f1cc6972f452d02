// One walk through the bodies of a job: which ops can begin, which ranks meet, which messages travel and, when nothing
// moves any more, who waits for whom. The abstract run, abstract values, virtual ranks and the happens-before order are
// policies of it: the walk decides when an op happens, its policy what that means.
//
// What blocks here blocks on every execution, whatever the timing: an op that can proceed stays able to.
#pragma once
#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace prun {

struct OpRef {
  StreamId stream = 0;
  int index = 0;
  auto operator<=>(const OpRef&) const = default;
};

// Ops of the same group and lane meet; an axis over all ranks is the world's group.
struct Lane {
  std::string axis;
  int lane = 0;
  auto operator<=>(const Lane&) const = default;
};
Lane lane_of(const Program& program, const Op& op);
std::string lane_text(const Lane& lane);  // "dp (lane 0)"

// Of a message: how many ranks further along its axis the other one is, from 0; that rank.
int peer_offset(const Mesh& mesh, const Op& op);
int peer_rank(const Mesh& mesh, const Op& op, int rank);

// The first edge of `op` that the streams' progress (ops done, by stream) does not satisfy. Edges to the step before
// are satisfied: streams meet at the end of every step.
std::optional<Edge> unsatisfied(const Op& op, const Table<StreamId, int>& done);

// A stream of an actor; the op meant is its next one.
struct StreamCursor {
  int actor = 0;
  StreamId stream = 0;
  bool operator==(const StreamCursor&) const = default;
};

// What the ops of a walk do. An op is the walk's op(at) until the call has returned.
class WalkPolicy {
 public:
  virtual ~WalkPolicy() = default;
  virtual void run(StreamCursor) {}                                // an op that meets no other actor
  virtual void meet(const std::vector<StreamCursor>&) {}           // a collective, its members in the group's order
  virtual void send(StreamCursor) {}                               // a send or put ends: its operand is free
  virtual void receive(StreamCursor) {}                            // a recv or wait_signal ends: its message is there
  virtual bool buffers(int /*under_way*/) const { return false; }  // a send ends before its receive begins
  // Ops begin when they can, are told to run, meet, send or receive at once, and end when the walk's finish says so.
  virtual bool takes_time() const { return false; }
};

class Walk {
 public:
  // Who walks: every rank; or a class for all of its ranks, with the partners of its first one; or classes where ranks
  // of one class have groups and peers of the same classes, so that they move in step, and ranks elsewhere.
  enum class By { rank, class_, class_if_alike };
  // What repeats is walked through as it is listed, or every time that it runs. Then nobody asks where an op is: ref()
  // is that of the listed op.
  enum class Repeats { listed, run };

  // `bodies`: by class of the job. All arguments outlive the walk.
  Walk(const Job& job, const std::vector<const Body*>& bodies, By by, WalkPolicy& policy,
       Repeats repeats = Repeats::listed);
  // A rank by itself, whose communication meets nobody.
  Walk(const Body& body, WalkPolicy& policy);

  bool run();  // as far as it goes; true when everything has ended
  bool ended() const;
  std::vector<StreamCursor> ready() const;        // streams whose next op may begin, by actor and stream
  void step(StreamCursor at);                     // begins the next op of a ready stream
  void finish(StreamCursor at) { complete(at); }  // ends an op that takes time
  bool release();                                 // ends the first op that waits for other actors as if they had come
  // After a run that did not end: a circle of streams, each of which waits for the next; or, where an op's partner is
  // never issued, the way to it.
  std::vector<StreamCursor> circle() const;

  const Op& op(StreamCursor at) const { return stream(at).ops[place(at).index]; }
  OpRef ref(StreamCursor at) const { return {at.stream, place(at).index}; }
  const Stream& stream(StreamCursor at) const { return actors_[at.actor].body->streams[at.stream]; }
  int rank(StreamCursor at) const { return actors_[at.actor].rank; }  // of a class the first
  bool waits_for_others(StreamCursor at) const { return actors_[at.actor].arrived[at.stream]; }
  std::optional<Edge> missing_edge(StreamCursor at) const;
  // Messages of one sender, receiver and lane are a queue, which has a number.
  int channel(StreamCursor at);

 private:
  struct Actor {
    const Body* body = nullptr;
    int rank = 0;
    Table<StreamId, int> done;      // ops that have ended
    Table<StreamId, int> size;      // ops that there are
    Table<StreamId, bool> arrived;  // its op has begun and waits for other actors
    std::vector<int> groups;        // by axis (axes_)
  };
  struct Channel {
    std::deque<StreamCursor> sends, receives, puts;  // blocked
    int under_way = 0, offers = 0;
  };
  using ChannelKey = std::tuple<int, int, int, int>;  // sender, axis, offset, lane

  void add_actor(const Body& body, int rank);
  bool classes_are_alike(const std::vector<const Body*>& bodies) const;
  void find_groups();
  size_t axis_of(const Op& op) const;
  int peer(const Actor& actor, const Op& op) const;  // an actor
  void advance(int actor);
  bool begin(StreamCursor at);  // true: it has ended
  bool message(StreamCursor at, Channel& channel);
  void send(StreamCursor at, Channel& channel);
  void complete(StreamCursor at);
  void complete_at_once(StreamCursor at) {
    if (!policy_.takes_time()) complete(at);
  }
  bool unfinished(int actor, StreamId stream) const {
    return actors_[actor].done[stream] < actors_[actor].size[stream];
  }
  WrittenOut::Place place(StreamCursor at) const {
    const Actor& actor = actors_[at.actor];
    if (repeats_ == Repeats::listed) return {actor.done[at.stream], 0};
    return WrittenOut(*actor.body).at(at.stream, actor.done[at.stream]);
  }
  std::optional<StreamCursor> carrier(int actor, const Op& partner) const;
  std::optional<StreamCursor> blocker(StreamCursor at) const;

  const Job* job_ = nullptr;  // null: a rank by itself
  const Mesh* mesh_ = nullptr;
  WalkPolicy& policy_;
  bool by_class_ = false;
  Repeats repeats_ = Repeats::listed;
  std::vector<std::string> axes_;  // whose groups are more than one rank; the world's first
  std::vector<Actor> actors_;
  std::vector<std::vector<int>> members_;                              // by group: actors
  std::map<std::pair<int, int>, std::vector<StreamCursor>> meetings_;  // by group and lane: who has arrived
  std::map<ChannelKey, int> channel_index_;
  std::deque<Channel> channels_;
  std::deque<int> moved_;  // actors that may be able to go on
};

}  // namespace prun
