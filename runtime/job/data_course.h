// Checks that a resumed run continues with the data of its checkpoint, and that all nodes of a job have the same data.
//
// Surprising fact: nothing is read in full. A fingerprint takes at most 16 MiB of each input, however large its files.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/data_identity.h"
#include "ir/plan.h"
#include "ir/program.h"

namespace prun {

struct CheckpointSettings;

// Identifies the training's data, then the data of an evaluation that reads files. Throws usage_error if a file is gone
// or has changed since the plan was compiled.
std::vector<checkpoint::DataIdentity> identify_data(const Job& job, int64_t context);

// Throws checkpoint_invalid, with all differences, if the plan's data are not those of the checkpoint. With --new-data
// the steps of `job` begin at the first sample of its data instead.
void require_same_data(CheckpointSettings& settings, Job& job, const Plan& plan,
                       const checkpoint::DataIdentity& identity);

// Runs on node `node`: throws usage_error if its files differ in content from node 0's, which are `identities`.
void require_data_of_node_0(const std::vector<checkpoint::DataIdentity>& identities, const Job& job, int node);

}  // namespace prun
