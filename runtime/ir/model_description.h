// A model of lua/prun/models by its name and arguments, as a plan made it: what tells other programs how to compute
// with the weights of a checkpoint.
#pragma once
#include <string>

#include "base/named_field.h"
#include "ir/attrs.h"

namespace prun {

struct ModelDescription {
  std::string name;  // "llama"; "": a function of the plan's own
  Attrs arguments;   // all of them, defaults too; true and false are 1 and 0
  bool operator==(const ModelDescription&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("name", name), field("arguments", arguments));
  }
};

}  // namespace prun
