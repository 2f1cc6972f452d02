// One case on a device, compared with the reference device: same inputs, tight tolerances.
#pragma once
#include <string_view>

#include "device/device.h"
#include "tests/agreement/agreement_cases.h"

namespace prun {

struct AgreementOptions {
  int threads = 1;
  int64_t skew = 0;                    // elements by which every tensor lies beside an aligned address
  const Device* exactly_as = nullptr;  // compared to the bit with this device, not with the reference
  bool tensor_cores = false;  // in bf16 they round what is in between: softmax's probabilities, gradients of scores
  // cuDNN's hops round the gradients of keys of each head to bf16 before it adds those that share keys. They may
  // cancel.
  bool rounds_heads = false;
};
bool on_tensor_cores(std::string_view kind);  // of devices that have them
bool may_round_heads(std::string_view kind);  // of devices with cuDNN
// Random numbers are the same on every device, and so is what is added in an order that the op's meaning states.
bool has_bits_of_the_cpu(std::string_view kind);

// Whether the device has a kernel for the case's op in that type.
bool supported(const Case& c, const Device& device, Dtype dtype);
// As a GoogleTest assertion. What a backward op reads from its forward op (log-sum-exps, statistics) is made by the
// reference first, so that each kernel is judged alone.
void expect_agreement(const Case& c, const Device& device, Dtype dtype, const AgreementOptions& options = {});

}  // namespace prun
