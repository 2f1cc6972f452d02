// One mistake that a pass could make, in a program that is right.
//
// Surprising fact: half of the mutants that drop, double or swap ops get their edges and offsets anew, as if the pass
// had recorded the wrong ops in the first place: no race or overlap gives them away, only what they compute.
#pragma once
#include <random>
#include <string>

#include "ir/program.h"

namespace prun::mutate {

enum class Kind { drop, twice, swap, axis, edge, lifetime, count, reduction, heads, blocks, attribute, repeat };
inline constexpr int kKinds = 12;
std::string_view kind_name(Kind kind);

struct Mutant {
  Job job;
  Kind kind = Kind::drop;
  std::string what;  // "drops all_reduce (compute#12, plans/ddp.lua:3)"
  Site site;
  bool without_effect = false;  // order, buffers and values are those of the original
};

// A random mutant of that kind; false when the job offers none (no edge, no other axis).
bool mutate(const Job& right, Kind kind, std::mt19937_64& random, Mutant& mutant);

bool repeat(Job& job, std::mt19937_64& random, Mutant& mutant);  // repeat_mutant.cc

// Derives edges and offsets of a step anew, from its ops in one legal sequence; false when the compiler would have
// given up, and nothing is changed.
bool derive_anew(Program& program, const Body& recorded);

}  // namespace prun::mutate
