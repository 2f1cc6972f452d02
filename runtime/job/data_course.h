// Checks that a resumed run continues with the data of its checkpoint, and that all nodes of a job have the same data.
//
// No input is read in full: a fingerprint reads at most 16 MiB of each, whatever the size of its files.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/data_identity.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct CheckpointSettings;

// Identifies the training data, then the data of an evaluation that reads files. Throws usage_error if a file is gone
// or has changed since the plan was compiled. `fingerprint`: of a feed.
std::vector<checkpoint::DataIdentity> identify_data(const Job& job, int64_t context, const std::string& fingerprint);

// Throws checkpoint_invalid, with all differences, if the plan's data differ from the checkpoint's. With --new-data the
// steps of `job` begin at the first sample of the plan's data instead.
void require_same_data(CheckpointSettings& settings, Job& job, const Plan& plan,
                       const checkpoint::DataIdentity& identity);

// On node `node`: throws usage_error if the content of its files differs from node 0's, given by `identities`.
void require_data_of_node_0(const std::vector<checkpoint::DataIdentity>& identities, const Job& job, int node);

}  // namespace prun
