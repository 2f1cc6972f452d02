// --chaos omit: a rank leaves out a collective when it is told to, so that its peers meet its next one.
#pragma once
#include <atomic>
#include <memory>

#include "device/device.h"

namespace prun {

using Omission = std::shared_ptr<std::atomic<bool>>;

// `kernel`, but for the run that finds the omission set; that takes it.
std::unique_ptr<Kernel> omitting(std::unique_ptr<Kernel> kernel, Omission omission);

}  // namespace prun
