// The table of the parity product: what is computed on which mesh, and what it must equal.
#pragma once
#include <string>
#include <vector>

#include "tests/parity/parity_job.h"

namespace prun::test {

struct ProductCase {
  std::string strategy;  // "zero3 x tp": a row of the generated table
  std::string model;     // or, for the plans that come with prun, "of the plan"
  std::string mesh;      // "dp=2 tp=2", and what else is particular: "dp=2 tp=2, micro 3"
  int ranks = 1;
  std::string plan = "tests/parity/product.lua";
  Settings settings;
  Settings yardstick;  // the same on one rank
  bool some = false;   // part of CI
};

// Strategies x meshes x models of product.lua, then the plans of plans/ and plans/custom/.
std::vector<ProductCase> product_cases();

// The commands in the table of plans/atlas/README.md; `strategy` is the command.
std::vector<ProductCase> atlas_cases();

}  // namespace prun::test
