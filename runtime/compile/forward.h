// An evaluation or a prediction without training: the forward pass of a plan's model with the weights of a checkpoint,
// on the plan's mesh. All parameters are frozen, so that no rank has gradients or optimizer state.
#pragma once
#include <string>

#include "ir/plan.h"

namespace prun {

struct Forward {
  bool predicts = false;
  std::string output;  // the predicted value's name in the plan; "" = the input of the loss
};

// Returns the plan for CompileOptions::forward. A prediction reads each sample of the training data once, in the order
// of the files. Throws plan_error if the plan has no evaluation, or data without an end.
Plan forward_plan(Plan plan, const Forward& forward);

}  // namespace prun
