// Injects one fault that a pass could make into a correct program.
//
// Surprising fact: half of the mutants that drop, double or swap ops get new edges and offsets, as if the pass had
// recorded the wrong ops. Then no race or overlap reveals them, only the values that they compute.
#pragma once
#include <random>
#include <string>

#include "ir/program.h"

namespace prun::mutate {

enum class Kind {
  drop,
  twice,
  swap,
  axis,
  edge,
  lifetime,
  count,
  reduction,
  heads,
  blocks,
  attribute,
  repeat,
  frozen,
  shares,
  view
};
inline constexpr int kKinds = 15;
std::string_view kind_name(Kind kind);

struct Mutant {
  Job job;
  Kind kind = Kind::drop;
  std::string what;  // for example "drops all_reduce (compute#12, plans/ddp.lua:3)"
  Site site;
  bool without_effect = false;  // order, buffers and values equal the original's
  bool is_proven = false;       // placements cannot show it; a proof, which compares views with copies, does
};

// Makes a random mutant of that kind. Returns false if the job offers none (no edge, no other axis).
bool mutate(const Job& right, Kind kind, std::mt19937_64& random, Mutant& mutant);

bool repeat(Job& job, std::mt19937_64& random, Mutant& mutant);  // repeat_mutant.cc

// Derives a step's edges and offsets again from its ops in one legal sequence. Returns false, without changes, if the
// compiler would have rejected the sequence.
bool derive_anew(Program& program, const Body& recorded);

}  // namespace prun::mutate
