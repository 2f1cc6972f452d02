// The request of `prun eval` and `prun predict`.
#pragma once
#include <string>

namespace prun {

struct ForwardSettings {
  std::string from;    // a checkpoint, a folder of them, or any weights that open_weights reads
  std::string output;  // Forward::output
  std::string out;     // the file of a prediction
  // Returns the file that ranks write; it gets its name once it is whole.
  std::string staged() const { return out.empty() ? "" : out + ".part"; }
};

}  // namespace prun
