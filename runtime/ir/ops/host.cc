// Ops that the executor itself runs, on every device: next batch, print, norms for --metrics.
#include "ir/ops/rules.h"

namespace prun::ops {

const OpDef next_batch = {.name = "next_batch", .op_class = OpClass::host, .role = OpRole::source, .side_first = 0};
const OpDef print = {.name = "print", .op_class = OpClass::host, .role = OpRole::output};
const OpDef report_norms = {.name = "report_norms", .op_class = OpClass::host, .role = OpRole::output};
// Writes the rows of a batch's samples to the file of a prediction.
const OpDef write_rows = {
    .name = "write_rows", .op_class = OpClass::host, .role = OpRole::output, .distribution = Distribution::own};
// Checkpoint state: load_state reads parameters or a moment, like init_params; await_checkpoint waits for the
// checkpoint in progress; save_state writes the state in host memory to disk.
const OpDef load_state = {.name = "load_state", .op_class = OpClass::host, .role = OpRole::source};
const OpDef await_checkpoint = {.name = "await_checkpoint", .op_class = OpClass::host, .role = OpRole::output};
const OpDef save_state = {.name = "save_state", .op_class = OpClass::host, .role = OpRole::output};

// Copies between the two arenas of a rank: load from host to device, store back.
const OpDef load = {.name = "load",
                    .op_class = OpClass::transfer,
                    .role = OpRole::transfer,
                    .moves = true,
                    .shapes = "from -> to is from"};
const OpDef store = {.name = "store",
                     .op_class = OpClass::transfer,
                     .role = OpRole::transfer,
                     .moves = true,
                     .shapes = "from -> to is from"};

}  // namespace prun::ops
