// A rank's place in its job, as assigned by the launcher; opening a transport requires all of it.
#pragma once
#include <string>

namespace prun {

struct RankPlace {
  int rank = 0, ranks = 1, local_rank = 0, local_ranks = 1;
  std::string job_id;
  std::string job_secret;  // 32 bytes
};

}  // namespace prun
