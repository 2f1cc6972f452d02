// The op attend and its gradient: sizes, shared heads, windows, spans and masks of each form, queries without keys.
#include <algorithm>
#include <string>

#include "tests/agreement/case_family.h"

namespace prun {
namespace {

struct Sizes {
  int64_t batch, queries, keys, heads, kv_heads, size, value;
};

struct Rule {
  const char* name;
  Attrs attrs;
  const char* reads;  // the optional operands
};

// Returns the attributes on rank 2 of 4 ranks that share the heads of keys.
Attrs shared_keys(int64_t heads) {
  return make_attrs({{"causal", 1}, {"kv_axis", std::string("dp")}, {"of_heads", 4 * heads}});
}

std::vector<Rule> rules_of(int64_t keys, int64_t heads) {
  return {
      {"all keys", {}, ""},
      {"causal", make_attrs({{"causal", 1}}), ""},
      {"a window of 3", make_attrs({{"window", 3}}), ""},
      {"a causal window", make_attrs({{"causal", 1}, {"window", std::max<int64_t>(2, keys / 3)}, {"scale", 0.1}}), ""},
      {"heads of keys of all ranks", shared_keys(heads), ""},
      {"softcap and scale", make_attrs({{"causal", 1}, {"softcap", 1.5}, {"scale", 0.4}}), ""},
      {"random spans", make_attrs({{"spans", 1}}), "spans"},
      {"causal documents", make_attrs({{"spans", 1}, {"causal", 1}}), "spans"},
      {"a mask of keys", make_attrs({{"masked", 1}}), "columns"},
      {"a mask of keys, kept dim", make_attrs({{"masked", 1}, {"causal", 1}}), "kept"},
      {"a mask of queries", make_attrs({{"masked", 1}}), "pairs"},
      {"spans and mask", make_attrs({{"spans", 1}, {"masked", 1}, {"window", 5}}), "spans pairs"},
      {"padding", make_attrs({{"masked", 1}}), "padded"},
      {"a mask of floats", make_attrs({{"masked", 1}, {"softcap", 3.0}}), "floats"}};
}

}  // namespace

std::vector<Case> attend_cases() {
  std::vector<Case> out;
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1, 1},
                         {2, 5, 5, 3, 3, 7, 7},
                         {1, 37, 20, 2, 1, 16, 8},
                         {1, 33, 70, 2, 1, 24, 40},
                         {2, 24, 24, 4, 2, 16, 16},
                         {1, 130, 130, 2, 1, 20, 20},
                         {1, 65, 65, 1, 1, 192, 128}}) {
    Family f(out, {{"q dq", {T, {s.batch, s.queries, s.heads * s.size}, -2, 2}},
                   {"k dk", {T, {s.batch, s.keys, s.kv_heads * s.size}, -2, 2}},
                   {"v dv", {T, {s.batch, s.keys, s.kv_heads * s.value}, -2, 2}},
                   {"y dy", {T, {s.batch, s.queries, s.heads * s.value}}},
                   {"lse", {F32, {s.batch, s.heads, s.queries}}},
                   {"spans", {I32, {s.batch, s.queries, 2}, 0, static_cast<double>(s.keys + 1)}},
                   {"columns", {I32, {s.batch, s.keys}, 0, 2}},
                   {"kept", {I32, {s.batch, 1, s.keys}, 0, 2}},
                   {"pairs", {I32, {s.batch, s.queries, s.keys}, 0, 2}},
                   {"there", {F32, {s.batch, s.keys - s.keys / 2}, 1, 2}},
                   {"floats padded", {F32, {s.batch, s.keys}, 0, 1}}});
    for (Rule rule : rules_of(s.keys, s.heads)) {
      if (rule.attrs.integer("causal") != 0 && s.queries != s.keys) continue;
      rule.attrs.set("heads", s.heads);
      rule.attrs.set("kv_heads", s.kv_heads);
      const std::string rest = rule.reads;
      const std::string forward = "attend q k v " + rest + " > y lse";
      const std::string backward = "attend_grad q k v y dy lse " + rest + " > dq dk dv";
      const Line first{forward.c_str(), rule.attrs};
      std::vector<Line> before;  // makes zeros, which hide keys
      if (rest == "floats")
        before.push_back({"pointwise floats > floats", make_attrs({{"program", std::string("less x0 0.5")}})});
      if (rest == "padded") before.push_back({"pad there > padded", make_attrs({{"dim", 1}, {"after", s.keys / 2}})});
      f.add(rule.name, first, 5e-6, before);
      before.push_back(first);
      // With one key the gradient of q is exactly 0, and rounding has nothing to be compared with.
      if (s.keys > 1) f.add(rule.name, {backward.c_str(), rule.attrs}, 2e-5, before);
    }
  }
  return out;
}

}  // namespace prun
