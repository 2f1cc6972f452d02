// What a job has trained, as whole tensors: parameters, their gradients and the optimizer's state, element by element,
// whichever rank holds them.
//
// The init body says where a parameter lies: its init_params lists the parts of each unit's flat vector, and gradients
// and optimizer state have the layout of the parameters that they are of.
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
  std::string name;                        // one of these, or of the optimizer's state: "adamw.m"
  std::string suffix_whole, suffix_shard;  // of the unit's tensor, by place.cc: "block0.params", "block0.shard"
};

// The kinds that the programs keep, gradients first: in the order in which a step makes them.
std::vector<StateKind> state_kinds(const Job& job);

// A rank's part of one unit's state of one kind.
struct HeldState {
  int rank = 0;
  std::string unit;
  TensorId tensor;
  struct Element {
    int64_t key, whole;  // parameter, and its element
    double value;
  };
  std::vector<Element> elements;
};

std::vector<HeldState> held_state(const Job& job, const VirtualRun& run, const StateKind& kind);

// The parameters that an init_params lists, where its rank has what of them.
struct UnitPlace {
  std::string unit;
  TensorId tensor;  // of the kind asked for
  const Op* init;
};
std::vector<UnitPlace> unit_places(const Program& program, const StateKind& kind);

// By parameter: all its elements, of a job of one rank.
std::map<int64_t, std::vector<double>> whole_state(const Job& job, const VirtualRun& run, const StateKind& kind);

}  // namespace prun
