// Builds the step: walks the turns, lowers their nodes to ops on the compute stream and carries out what the
// strategies' hooks intended before and after them.
//
// Everything is recorded in the order that gives the step its meaning; OpRecorder turns that into edges.
#pragma once
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "compile/draft.h"
#include "compile/record.h"

namespace prun {

class StepBuilder {
 public:
  explicit StepBuilder(Draft& draft);
  void run();

 private:
  // communicate.cc
  void next_batch();
  void turn(const Turn& turn);
  void hooks(const Turn& turn, bool after);
  void carry_out(const Turn& turn, int strategy, const Intent& intent);
  void lower(const Node& node, Phase phase);
  int first_call(int unit) const;
  void average_loss();
  std::string gradient_stream() const;
  void print(const Turn& turn, const Intent& intent);
  const std::string& unit_name(int unit) const { return draft_.graph.units[static_cast<size_t>(unit)].name; }
  int unit_of(const Turn& turn) const { return draft_.graph.calls[static_cast<size_t>(turn.call)].unit; }
  const std::vector<const Node*>& nodes_of(const Turn& turn) const;
  Op communication(const char* kind, const Intent& intent, const Turn& turn, int read, int write) const;
  int input_of(int value);

  // gathers.cc: full parameters of sharded units
  struct Gathered {
    int strategy, handle, call;
    int pool, slot, buffer;
    std::map<int, int> full;  // unit -> tensor over its whole flat vector
    bool live = true;
    Site site, freed;
  };
  void gather(const Turn& turn, int strategy, const Intent& intent);
  void free_gathered(const Turn& turn, int strategy, const Intent& intent);
  Gathered* find_live(int strategy, int handle, int unit);
  int parameter(int value, const Node& reader);
  [[noreturn]] void not_gathered(const Value& parameter, const Node& reader, const Site& freed) const;
  std::vector<int> units_read(const Turn& turn) const;
  int claim_slot(int pool, const std::string& what, const Site& site, bool (StepBuilder::*busy)(int pool, int slot, std::string& holder));
  bool gather_slot_busy(int pool, int slot, std::string& holder);
  int pool_of(const std::string& name, Role role, int slots);

  // gradients.cc
  struct Bucket {  // unreduced gradient of a sharded unit
    int buffer = -1, flat = -1, pool = -1, slot = -1;
    bool reduced = false;
  };
  struct PendingReduce {  // consecutive gradients of units that are not sharded, waiting for their bucket to fill
    int64_t first = -1, end = 0;  // elements of the flat gradient buffer
    int buckets = 0;
    Intent intent;
    Turn turn;
  };
  int gradient_tensor(int unit, size_t parameter, const Turn& turn);
  void open_bucket(int unit, const Turn& turn);
  void reduce_scatter(const Turn& turn, const Intent& intent);
  void all_reduce(const Turn& turn, int strategy, const Intent& intent);
  void flush(int strategy, bool all);
  void emit_all_reduce(PendingReduce& pending, int64_t end);
  void require_gradients(int unit, const Intent& intent);
  void require_reduced();
  bool bucket_slot_busy(int pool, int slot, std::string& holder);

  // optimize.cc
  void optimize();
  int clip_coefficient();
  void update(int unit, int clip);

  int compute_tensor(const std::string& name, TensorType type, const Site& site);

  Draft& draft_;
  Program& program_;
  OpRecorder recorder_;
  std::vector<int> tensor_of_;                  // by value
  std::vector<std::vector<const Node*>> forward_, backward_;  // by call
  std::map<int, std::pair<int, size_t>> whole_gradient_;      // value -> (unit, parameter index)
  std::vector<bool> gradient_done_;             // by value
  std::vector<Gathered> gathered_;
  std::map<int, int> slot_counter_;             // pool -> slots handed out
  std::map<std::pair<int, int>, int> occupant_; // (pool, slot) -> buffer
  std::map<std::string, int> pool_index_;
  std::map<std::tuple<int, size_t, int>, int> views_;  // (unit, parameter, of tensor) -> tensor
  std::vector<Bucket> buckets_;                 // by unit
  std::map<int, PendingReduce> pending_;        // by strategy
  std::vector<std::vector<std::string>> reduced_over_;  // by unit: axes
};

}  // namespace prun
