// The trained state of a job as whole tensors: parameters, their gradients and the optimizer state, element by element,
// whichever rank holds them.
//
// The init body determines the location of a parameter: its init_params lists the parts of each unit's flat vector;
// gradients and optimizer state have the same layout. State of another layout, such as the means of rows that Adafactor
// keeps, is found by Program::state.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "exec/virtual_ranks.h"
#include "ir/program.h"

namespace prun {

inline constexpr std::string_view kParameters = "parameters", kGradients = "gradients";

struct StateKind {
  std::string name;                        // kParameters, kGradients, or a name of optimizer state: "adamw.m"
  std::string suffix_whole, suffix_shard;  // of place.cc's tensors "block0.params", "block0.shard"; "" = another layout
};

// Returns the kinds that the programs hold, gradients first, in the order in which a step computes them.
std::vector<StateKind> state_kinds(const Job& job);

// A rank's part of one unit's state of one kind.
struct HeldState {
  int rank = 0;
  std::string unit;
  TensorId tensor;
  struct Element {
    int64_t key, whole;  // parameter, and index of the element in its whole state
    double value;
  };
  std::vector<Element> elements;
};

std::vector<HeldState> held_state(const Job& job, const VirtualRun& run, const StateKind& kind);

// The tensor of a unit on this rank, and the init op that lists its parameters.
struct UnitPlace {
  std::string unit;
  TensorId tensor;  // tensor of the requested kind
  const Op* init;
};
std::vector<UnitPlace> unit_places(const Program& program, const StateKind& kind);

// Returns all elements of each parameter of a single-rank job.
std::map<int64_t, std::vector<double>> whole_state(const Job& job, const VirtualRun& run, const StateKind& kind);

}  // namespace prun
