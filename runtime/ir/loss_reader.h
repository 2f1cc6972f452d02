// Reads the terms of a plan's loss and the numbers that its model names.
//
//     "terms": [{"id": value | "parameters": [ids], "coefficient": 0.5, "optimised": true, "steps": true}, ..],
//     "named": [{"name": "balance", "terms": [{"term": 1, "factor": 2}], "over": [..], "steps": true}, ..]
//
// Without "terms" the value "loss" is the only one.
#pragma once
#include "ir/graph.h"
#include "ir/plan_field.h"

namespace prun::plan_document {

void read_loss_terms(const Field& root, Graph& graph);

}  // namespace prun::plan_document
