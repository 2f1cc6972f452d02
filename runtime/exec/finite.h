// require_finite, the end of a body with --check-finite: fails if a check of the body has noted something.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace prun {

// A NaN or an infinity. The message names the op that made it and the one that reads it; op() shows the former with its
// tensors. It is an effect, not the cause, if it came from another rank.
class NonFinite : public Error {
 public:
  NonFinite(std::string message, std::string op, bool from_elsewhere, int64_t step);
  const std::string& op() const { return op_; }

 private:
  std::string op_;
};

// run() throws NonFinite for the first op in program order that wrote a value that is not finite; where such steps
// update nothing and the run goes on (Schedule::most_skips), it says so on standard error.
std::unique_ptr<Kernel> make_require_finite(const RankMemory& memory, const Op& op);

}  // namespace prun
