// Runs one case on a device and compares it with the reference device: same inputs, tight tolerances.
#pragma once
#include <string_view>

#include "device/device.h"
#include "tests/agreement/agreement_cases.h"

namespace prun {

struct AgreementOptions {
  int threads = 1;
  int64_t skew = 0;                    // misalignment of every tensor, in elements
  const Device* exactly_as = nullptr;  // compared bitwise with this device instead of the reference
  bool tensor_cores = false;  // intermediate values (softmax's probabilities, gradients of scores) are rounded to bf16
  // cuDNN's hops round each head's gradients of keys to bf16 before they are summed over heads that share keys. The sum
  // may cancel.
  bool rounds_heads = false;
  int runs = 2;  // a run must not depend on state of the one before
};
bool on_tensor_cores(std::string_view kind);  // on devices that have them
bool may_round_heads(std::string_view kind);  // on devices with cuDNN
// Whether results equal the CPU's bitwise: random numbers, and sums whose order the op defines.
bool has_bits_of_the_cpu(std::string_view kind);

// Whether the device has a kernel for the case's op in that type.
bool supported(const Case& c, const Device& device, Dtype dtype);
// Compares as a GoogleTest assertion. The reference computes the results of forward ops that a backward op reads
// (log-sum-exps, statistics), so that each kernel is judged alone.
void expect_agreement(const Case& c, const Device& device, Dtype dtype, const AgreementOptions& options = {});

}  // namespace prun
