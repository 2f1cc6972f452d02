// What a call gets and must give: "#wrong" of a row.
//
// Surprising fact: inputs repeat after a prime number of elements. What a reduction must give repeats with them, so
// that checking 64 MiB on 8 ranks costs a comparison and not eight times the data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/ops.h"

namespace prun {

class BenchData {
 public:
  BenchData(const BenchOp& op, const CollCall& call, int ranks);
  // Input of member `me` at call.send; garbage where its output comes.
  void fill(int me, const CollCall& call) const;
  // Elements of the output of member `me` that are not what they must be.
  int64_t wrong(int me, const CollCall& call) const;

 private:
  using Period = std::vector<std::byte>;
  struct Expected {
    int64_t at, count;  // elements of the output
    const Period* values;
    int64_t from;  // element of the source's input that stands at `at`
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
  std::vector<Period> inputs_;  // by member
  Period reduced_;
};

}  // namespace prun
