// Reads the plan that the script child sends to the launcher as JSON (CBOR on the pipe).
//
// Schema; every "site" is ["file", line]; ids are indices into the arrays, from 0:
//   { "path": "plans/zero3.lua", "kind": "plan" | "program",
//     "mesh": { "axes": [["dp", 8]], "site": S },
//   -- kind "plan":
//     "values": [ { "name", "dtype", "shape": [..], "kind": "input"|"parameter"|"activation", "unit": 3|-1,
//                   "init": { "kind", "scale" } (parameters), "buffer": true (or none), "site": S } ],
//     "nodes":  [ { "op": "linear", "inputs": [..], "outputs": [..], "attrs": {..}, "call": 0, "site": S } ],
//     "units":  [ { "name": "block3", "class": "block", "parameters": [ids], "groups": [0, 2], "frozen": [0, 1] } ],
//        "groups" and "frozen" (or none): the optimizer group of each parameter, from 1, and whether it is frozen
//     "calls":  [ { "unit": 0 } ],
//        "values" and "nodes" omit calls that equal an earlier one up to the names of their own unit. Such a call is
//        { "unit": 2, "like": 1, "first": 40, "takes": [39] }: the earlier call; its own first value; and, in order,
//        the values that replace those inputs of the earlier call's nodes that are not values of that call. The earlier
//        call has its extent: { "unit": 1, "first": 14, "values": 26, "nodes": 10 }.
//     "loss": id, "steps": 20, "seed": 1, "reduce": "rank_order" | "any", "dtype": "f32"|"bf16"|"f64",
//     "data": { "kind", "batch", "vocab", "context", "order", "first", "count", "part", "scale", "site": S,
//               "files": [ { "path" (absolute), "bytes", "skip_bytes", "element", "name" } ] },
//     "eval": { "every", "batches", "data": as "data", "site": S } (or none),
//     "checkpoint": { "every", "keep", "site": S } (or none),
//     "optimizer": { "kind": "adamw", "lr", "weight_decay", "clip", its OptimizerTraits::numbers or "betas", "site": S,
//                    "groups": [ { "match": "*.bias", "lr", "decay" } ],
//                    "schedule": { "kind": "cosine" | "linear" | "warmup", "warmup", "steps", "least" } (or none) },
//     "strategies": [ { "name", "axis", "differs", "site": S, "units": [ { "class", "sharded": bool, "shard_axis",
//     "site": S,
//         "hooks": [ { "when": "before"|"after", "phase": "forward"|"backward", "intents": [
//            { "kind", "target", "handle", "source", "axis", "stream", "op", "text", "prefetch", "inflight", "bucket",
//              "first", "keep_last", "site": S } ] } ] } ] } ]
//    "others": [ { "mesh", "micro", "batch", "pipeline" } ]: the same plan at other sizes
//   -- kind "program":
//     "programs": [ { "tensors": [ { "name", "dtype", "shape" } ],
//                     "ops": [ { "op", "inputs": [..], "outputs": [..], "attrs": {..}, "axis": "world"|"", "site": S }
//                     ] } ],
//     "program_of_rank": [0, 0, 1] }
// Attributes are numbers, texts, or lists of numbers. Inputs of the model are named tokens, targets, x, y.
#pragma once
#include <string_view>
#include <vector>

#include "ir/plan.h"

namespace prun {

// Throws plan_error if the document violates the schema, which is a bug of a DSL module, not of the user's plan.
Plan read_plan(std::string_view cbor);
// Returns also the plans at the document's other sizes.
std::vector<Plan> read_plans(std::string_view cbor);

}  // namespace prun
