// How many ranks compute on the cores that this rank may use.
#pragma once
#include "launch/launch.h"

namespace prun {

// Launchers such as mpirun bind each process to cores of its own, or none: ranks tell each other theirs. All ranks call
// it at the same place.
int ranks_on_these_cores(const RankStart& start);

}  // namespace prun
