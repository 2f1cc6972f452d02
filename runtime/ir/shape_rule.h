// Shape rules of ops that no model contains: one line of text per op row that constrains each read and write.
//
//   "x [..,K], w [K,N]t, b? [N] -> y [..,N], pre as y"
//
// A capital letter is a size: bound at its first occurrence, compared afterwards. R is the number of rows, the product
// of all dims but the last. Other words are attributes: a list counts as its length, an absent one as 1 (kv_heads: as
// heads).
//   [..,N]   R rows of N             as y   the shape of y
//   [K,N]    these dims              like y as many elements as y
//   [K,N]t   transposed by that attribute    is y   as `like`, of one dtype
//   #R*k     that many elements      b?     may be absent        ...   any number more
// Equations of sizes may follow the writes: "; W = C+D".
#pragma once
#include <string>
#include <vector>

#include "ir/op_def.h"

namespace prun {

// Returns how a call of `op` violates its OpDef::shapes or, for an optimizer, its traits; "" = it does not.
std::string shape_problem(const OpDef& op, const std::vector<TensorType>& reads, const std::vector<TensorType>& writes,
                          const Attrs& attrs);

}  // namespace prun
