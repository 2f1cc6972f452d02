// One execution of a job with abstract values: for every byte, who wrote it, from which parameters, and how the tensor
// it belongs to is spread over the mesh.
//
// Surprising fact: one legal order stands for all of them. Conflicting accesses are ordered (accesses.cc), so whatever
// the timing, each read finds the same write.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "verify/byte_map.h"
#include "verify/placement.h"
#include "verify/view.h"

namespace prun::verify {

// Whether a value is a copy of parameters, and of which version.
enum class ParamVersion : uint8_t { none, before_update, after_update };

struct ValueState {
  OpRef writer{-1, 0};  // stream -1: init, or the step before
  int version = 0;      // counts the writes of the class's step; 0: before the step
  int base = 0;         // the last version that was not made from the one before in place
  ParamVersion params = ParamVersion::none;
  bool live_in = false;  // what the step before left here was read in this one
  int norms = 0;         // how many norm2 have read it
  TensorPlacement placement;
};

struct Segment {
  int64_t begin = 0, end = 0;  // bytes of the buffer
  ValueState state;
};
using Segments = std::vector<Segment>;

struct OpContext;
// All of a tensor, or elements of it, with one placement; a placement for one parameter of a flat vector.
Segments whole(const Tensor& tensor, const TensorPlacement& placement);
void place_whole(OpContext& context, size_t write, const TensorPlacement& placement);  // what it writes so
Segment part(const Tensor& tensor, int64_t begin, int64_t end, const TensorPlacement& placement);
TensorPlacement parameter(const Piece& piece);

// One op with what its operands hold; rules fill in the writes.
struct OpContext {
  const BodyView& body;
  OpRef ref;
  const Op& op;
  std::vector<const Tensor*> read_tensors, write_tensors;
  std::vector<Segments> reads;
  std::vector<Segments> writes;  // in a write, state is what the op leaves there
  Findings& findings;
  bool met = false;  // a reduction that has seen what ranks of other programs bring

  // "reads, by 'embed.grads'": rule's message with both sites.
  void report(const std::string& rule, const std::string& what, const ValueState& state) const;
};

// Classes walk in the place of their ranks. A send leaves what it holds behind; where nothing moves any more, because
// ranks would wait for each other (deadlock.cc says so), ops go on without their partners.
class Values : private WalkPolicy {
 public:
  Values(const JobView& view, Findings& findings);
  // Init and the step of all classes; then the body between steps that is proved, if it is one.
  void run();

 private:
  struct Class {
    Table<BufferId, ByteMap<ValueState>> buffers;
    int version = 0;
    std::map<std::vector<int64_t>, OpRef> in_place;  // ops that update in place, with the versions they read
  };

  void run(StreamCursor at) override;
  void meet(const std::vector<StreamCursor>& members) override;
  void send(StreamCursor at) override;
  void receive(StreamCursor at) override;
  bool buffers(int) const override { return true; }

  void run_body(bool init);
  void begin_step();
  void end_step();
  OpContext context_of(StreamCursor at);
  void finish(int id, OpContext& context);
  void apply(int id, OpContext& context);
  void check_repeated(int id, const OpContext& context);
  Segments segments_of(int id, const Tensor& tensor);
  const BodyView& body(int id) const { return in_step_ ? view_.steps[id] : view_.bodies[id * 2 + (init_ ? 0 : 1)]; }

  const JobView& view_;
  Findings& findings_;
  PlacementFlow flow_;
  bool init_ = true, in_step_ = false;
  Walk* walk_ = nullptr;  // through the body under way
  std::vector<Class> classes_;
  std::vector<Table<BufferId, Segments>> begin_;  // by class: state when the step begins
  std::map<int, std::deque<Segments>> messages_;  // by channel: under way
};

// reads.cc: operands are what was written, not a part of it.
void check_reads(const OpContext& context);
// updates.cc: parameters are updated once, copies of them follow, reads come before. Sets the ages of the writes.
void follow_updates(OpContext& context);
void check_update_at_end(const BodyView& step, BufferId buffer, const Segments& end, Findings& findings);

}  // namespace prun::verify
