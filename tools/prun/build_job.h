// From a plan's path to a verified job: script, plan, compile, verify, in this order.
#pragma once
#include "device/device.h"
#include "ir/plan.h"
#include "ir/program.h"
#include "options.h"
#include "script/script.h"

namespace prun {

Job build_job(const Options& options, int ranks);
// What a plan says of itself: description and arguments, without being compiled.
ScriptResult describe_plan(const Options& options);
void print_plan_help(const Options& options);

}  // namespace prun
