// Shape rules of ops that no model contains, as one line of text in their rows: what each read and write must be.
//
//   "x [..,K], w [K,N]t, b? [N] -> y [..,N], pre as y"
//
// A capital letter is a size: bound where it is met first, compared afterwards. R is the number of rows, the product of
// all dims but the last. Other words are attributes: of a list its length, of an absent one 1 (kv_heads: as heads).
//   [..,N]   R rows of N             as y   the shape of y
//   [K,N]    these dims              like y as many elements as y
//   [K,N]t   transposed by that attribute    is y   as `like`, of one dtype
//   #R*k     so many elements        b?     may be absent        ...   any number more
// Behind the writes equations of sizes may follow: "; W = C+D".
#pragma once
#include <string>
#include <vector>

#include "ir/op_def.h"

namespace prun {

// What is wrong with the tensors of one call of `op`, by OpDef::shapes, of an optimizer by its traits; "": nothing.
std::string shape_problem(const OpDef& op, const std::vector<TensorType>& reads, const std::vector<TensorType>& writes,
                          const Attrs& attrs);

}  // namespace prun
