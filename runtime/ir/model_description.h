// Name and arguments of a model of lua/prun/models, as a plan created it, so that other programs can compute with the
// weights of a checkpoint.
#pragma once
#include <string>

#include "base/named_field.h"
#include "ir/attrs.h"

namespace prun {

struct ModelDescription {
  std::string name;  // "llama"; "" = a function of the plan itself
  Attrs arguments;   // all of them, including defaults; booleans are 1 and 0
  bool operator==(const ModelDescription&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("name", name), field("arguments", arguments));
  }
};

}  // namespace prun
