// Inputs and expected outputs of a measured call. Counts the "#wrong" of a row.
//
// Inputs and expected reductions have a prime period, so that checking 64 MiB on 8 ranks costs one comparison instead
// of eight times the data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/ops.h"

namespace prun {

class BenchData {
 public:
  BenchData(const BenchOp& op, const CollCall& call, int ranks);
  // Writes the input of member `me` to call.send, and garbage to its output.
  void fill(int me, const CollCall& call) const;
  // Counts the wrong elements in the output of member `me`.
  int64_t wrong(int me, const CollCall& call) const;

 private:
  using Period = std::vector<std::byte>;
  struct Expected {
    int64_t at, count;  // range of output elements
    const Period* values;
    int64_t from;  // element of `values` that belongs at `at`
  };
  std::vector<Expected> expected(int me) const;
  int64_t input_count(int me) const;
  int64_t output_count(int me) const;
  void write(const Period& values, int64_t from, int64_t count, std::byte* to) const;
  int64_t differing(const Expected& part, const std::byte* found) const;

  const BenchOp& op_;
  CollCall call_;
  int ranks_;
  int64_t item_;
  std::vector<Period> inputs_;  // inputs by member
  Period reduced_;
};

}  // namespace prun
