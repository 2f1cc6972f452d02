// Views: shapes whose runs are short, long, odd and contiguous; transpositions beyond a tile; repeated ids.
#include "tests/agreement/agreement_cases.h"
#include "tests/agreement/case_family.h"

namespace prun {
namespace {

Attrs dims(const char* name, Counts list) { return make_attrs({{name, std::move(list)}}); }

void add_moves(std::vector<Case>& out, std::optional<Dtype> dtype, int64_t a, int64_t b, int64_t c) {
  Family f(out, {{"x z", {dtype, {a, b, c}, -99, 99}},
                 {"flat", {dtype, {a * b, c}}},
                 {"turned", {dtype, {a, c, b}}},
                 {"first", {dtype, {b, a, c}}},
                 {"back", {dtype, {c, b, a}}},
                 {"part", {dtype, {a, (b + 1) / 2, c}}},
                 {"wide", {dtype, {a, b + 3, c}}},
                 {"tall", {dtype, {a + 2, b, c}}},
                 {"both", {dtype, {a, 2 * b, c}}},
                 {"rows", {dtype, {a, b, 2 * c + c}}},
                 {"one", {dtype, {a, 1, c}, -99, 99}},
                 {"single", {dtype, {1, b, 1}, -99, 99}},
                 {"ids", {I32, {a, 7}, 0, static_cast<double>(b)}},
                 {"taken", {dtype, {a, 7, c}}},
                 {"last_ids", {I32, {a, b, 2}, 0, static_cast<double>(c)}},
                 {"picked", {dtype, {a, b, 2}}}});
  const bool bf16 = !dtype.has_value();
  const auto add = [&](const char* name, const Line& line) { f.add(name, line, 0).bf16 = bf16; };
  add("reshape", {"reshape x > flat", dims("dims", {a * b, c})});
  add("permute of the last dims", {"permute x > turned", dims("order", {0, 2, 1})});
  add("permute of the first dims", {"permute x > first", dims("order", {1, 0, 2})});
  add("permute of all dims", {"permute x > back", dims("order", {2, 1, 0})});
  add("slice", {"slice x > part", make_attrs({{"dim", 1}, {"start", b / 2}, {"size", (b + 1) / 2}})});
  add("pad", {"pad x > wide", make_attrs({{"dim", 1}, {"before", 1}, {"after", 2}, {"value", -2.0}})});
  add("pad of the first dim", {"pad x > tall", make_attrs({{"dim", 0}, {"before", 2}, {"after", 0}})});
  add("concat", {"concat x z > both", make_attrs({{"dim", 1}})});
  add("concat of three, along rows", {"concat x z x > rows", make_attrs({{"dim", 2}})});
  add("expand", {"expand one > x", dims("dims", {a, b, c})});
  add("expand of two dims", {"expand single > x", dims("dims", {a, b, c})});
  add("gather_rows", {"gather_rows x ids > taken"});
  add("gather_rows of single elements", {"gather_rows x last_ids > picked"});
}

}  // namespace

std::vector<Case> view_cases() {
  std::vector<Case> out;
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 2, 5}, {3, 8, 16}, {5, 70, 33}})
    for (std::optional<Dtype> dtype : {T, I32, I64}) add_moves(out, dtype, a, b, c);
  for (auto [a, b, c] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 2, 1}, {3, 2, 5}, {5, 70, 33}, {3, 40, 133}, {2, 40, 600}}) {
    Family f(out, {{"dy", {T, {a, b, c}}},
                   {"middle", {T, {a, 1, c}}},
                   {"outer", {T, {1, b, 1}}},
                   {"all", {T, {1, 1, 1}}},
                   {"ids", {I32, {a, 7}, 0, static_cast<double>(b)}},
                   {"taken", {T, {a, 7, c}}},
                   {"many_ids", {I32, {a, 300}, 0, static_cast<double>(b)}},
                   {"many", {T, {a, 300, c}}},
                   {"last_ids", {I32, {a, b, 2}, 0, static_cast<double>(c)}},
                   {"picked", {T, {a, b, 2}}}});
    f.add("expand_grad", {"expand_grad dy > middle", dims("dims", {a, 1, c})}, 5e-6);
    f.add("expand_grad of outer dims", {"expand_grad dy > outer", dims("dims", {1, b, 1})}, 5e-6);
    f.add("expand_grad to one element", {"expand_grad dy > all", dims("dims", {1, 1, 1})}, 5e-6);
    f.add("gather_rows_grad of many ids", {"gather_rows_grad many_ids many > dy", make_attrs({{"rows", b}})}, 5e-6);
    f.add("gather_rows_grad", {"gather_rows_grad ids taken > dy", make_attrs({{"rows", b}})}, 5e-6);
    f.add("gather_rows_grad of single elements", {"gather_rows_grad last_ids picked > dy", make_attrs({{"rows", c}})},
          5e-6);
  }
  return out;
}

}  // namespace prun
