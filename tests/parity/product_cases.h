// The table of the parity product: each case with its mesh and the result that it must equal.
#pragma once
#include <string>
#include <vector>

#include "tests/parity/parity_job.h"

namespace prun::test {

struct ProductCase {
  std::string strategy;  // row of the generated table, for example "zero3 x tp"
  std::string model;     // model; "of the plan" for the plans of plans/
  std::string mesh;      // mesh and special settings: "dp=2 tp=2, micro 3"
  int ranks = 1;
  std::string plan = "tests/parity/product.lua";
  Settings settings;
  Settings yardstick;  // settings of the one rank
  bool some = false;   // part of CI
};

// Returns strategies x meshes x models of product.lua, then the plans of plans/ and plans/custom/.
std::vector<ProductCase> product_cases();

// Returns the commands in the table of plans/atlas/README.md; `strategy` is the command.
std::vector<ProductCase> atlas_cases();

}  // namespace prun::test
