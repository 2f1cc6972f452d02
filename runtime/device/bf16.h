// bfloat16, the hi half of an f32. The rounding is implemented once, in the SDK.
#pragma once
#include "prun/sdk/float16.h"

namespace prun {

using sdk::bf16;
using sdk::to_bf16;
using sdk::to_float;

}  // namespace prun
