// Walks through the bodies of a job: it determines which ops can begin, which ranks rendezvous, which messages are in
// flight and, if nothing can advance, which stream waits for which. The abstract run, abstract values, virtual ranks
// and the happens-before order are policies of it: the walk decides when an op happens, its policy what that means.
//
// An op that blocks here blocks in every execution, whatever the timing, because an op that can proceed remains able
// to.
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

// Ops of the same group and lane match; an axis over all ranks is the world's group.
struct Lane {
  std::string axis;
  int lane = 0;
  auto operator<=>(const Lane&) const = default;
};
Lane lane_of(const Program& program, const Op& op);
std::string lane_text(const Lane& lane);  // "dp (lane 0)"

// Return, for a message, the other rank's offset along the axis, in [0, size), and that rank.
int peer_offset(const Mesh& mesh, const Op& op);
int peer_rank(const Mesh& mesh, const Op& op, int rank);

// Returns the first edge of `op` that the streams' progress (ops done, by stream) does not satisfy. Edges to the
// previous step are satisfied, because streams join at the end of every step.
std::optional<Edge> unsatisfied(const Op& op, const Table<StreamId, int>& done);

// A stream of an actor; it refers to its next op.
struct StreamCursor {
  int actor = 0;
  StreamId stream = 0;
  bool operator==(const StreamCursor&) const = default;
};

// Effects of the ops of a walk. An op is the walk's op(at) until the call has returned.
class WalkPolicy {
 public:
  virtual ~WalkPolicy() = default;
  virtual void run(StreamCursor) {}                       // an op without other actors
  virtual void meet(const std::vector<StreamCursor>&) {}  // a collective, its members in the group's order
  virtual void send(StreamCursor) {}                      // a send or put ends: its operand is free
  virtual void receive(StreamCursor) {}                   // a recv or wait_signal ends: its message has arrived
  virtual bool buffers(int /*under_way*/) const { return false; }  // whether a send may end before its receive begins
  // Returns whether ops take time: their call comes when they begin, and they end at Walk::finish.
  virtual bool takes_time() const { return false; }
};

class Walk {
 public:
  // Actors of a walk. `rank`: every rank. `class_`: one per class, with the partners of its first rank.
  // `class_if_alike`: one per class if the ranks of each class have groups and peers of the same classes, because they
  // then run in lockstep; otherwise every rank.
  enum class By { rank, class_, class_if_alike };
  // Walks ops of a repeat once, as listed, or every time they run. In the second case, ref() is the listed op.
  enum class Repeats { listed, run };

  // `bodies`: by class of the job. All arguments must outlive the walk.
  Walk(const Job& job, const std::vector<const Body*>& bodies, By by, WalkPolicy& policy,
       Repeats repeats = Repeats::listed);
  // A single rank, whose communication has no partners.
  Walk(const Body& body, WalkPolicy& policy);

  bool run();  // walks as far as possible; returns true once everything has ended
  bool ended() const;
  std::vector<StreamCursor> ready() const;        // streams whose next op may begin, by actor and stream
  void step(StreamCursor at);                     // begins the next op of a ready stream
  void finish(StreamCursor at) { complete(at); }  // ends an op that takes time
  bool release();  // ends the first op that waits for other actors as if they had arrived; false = none
  // Call after a run that did not end. Returns a cycle of streams, each of which waits for the next, or, if an op's
  // partner is never issued, the chain that leads to it.
  std::vector<StreamCursor> circle() const;

  const Op& op(StreamCursor at) const { return stream(at).ops[place(at).index]; }
  OpRef ref(StreamCursor at) const { return {at.stream, place(at).index}; }
  const Stream& stream(StreamCursor at) const { return actors_[at.actor].body->streams[at.stream]; }
  int rank(StreamCursor at) const { return actors_[at.actor].rank; }  // for a class, its first rank
  bool waits_for_others(StreamCursor at) const { return actors_[at.actor].arrived[at.stream]; }
  std::optional<Edge> missing_edge(StreamCursor at) const;
  // Returns the number of the queue of messages with one sender, receiver and lane.
  int channel(StreamCursor at);

 private:
  // An op that had not ended when it was last looked for; index -1 = none.
  struct Awaited {
    StreamId stream;
    int64_t index = -1;  // executed
  };
  struct Actor {
    const Body* body = nullptr;
    int rank = 0;
    Table<StreamId, int> done;         // ops that have ended
    Table<StreamId, int> size;         // number of ops
    Table<StreamId, bool> arrived;     // the next op has begun and waits for other actors
    std::vector<int> groups;           // by axis (axes_)
    Table<StreamId, Awaited> awaited;  // of the next op
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
  int peer(const Actor& actor, const Op& op) const;  // index of the peer's actor
  bool is_blocked(StreamCursor at);                  // by an edge
  void advance(int actor);
  bool begin(StreamCursor at);  // returns whether the op has ended
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

  const Job* job_ = nullptr;  // null = a single rank
  const Mesh* mesh_ = nullptr;
  WalkPolicy& policy_;
  bool by_class_ = false;
  Repeats repeats_ = Repeats::listed;
  std::vector<std::string> axes_;  // with groups of more than one rank; the world's first
  std::vector<Actor> actors_;
  std::vector<std::vector<int>> members_;                              // by group: actors
  std::map<std::pair<int, int>, std::vector<StreamCursor>> meetings_;  // arrived actors, by group and lane
  std::map<ChannelKey, int> channel_index_;
  std::deque<Channel> channels_;
  std::deque<int> moved_;  // actors that may be able to advance
};

}  // namespace prun
