// Odd sizes, single rows and columns, sizes beyond a thread block; the second half of the ops in place.
#include "tests/agreement/agreement_cases.h"

#include <fmt/format.h>

#include "tests/agreement/case_family.h"

namespace prun {
namespace {

Attrs activated(const char* act) { return make_attrs({{"act", act}}); }
Attrs scaled() { return make_attrs({{"scale", 0.037}}); }
Attrs form(const char* name) { return make_attrs({{"approximate", name}}); }
Attrs cast_to(const char* dtype) { return make_attrs({{"dtype", dtype}}); }
}  // namespace

std::vector<Case> matrix_cases() {
  std::vector<Case> out;
  const Attrs transposed = make_attrs({{"transpose", 1}});
  for (Shape s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{17, 33, 65}, Shape{64, 128, 96}}) {
    const int64_t m = s[0], k = s[1], n = s[2];
    const double tolerance = 2e-6;
    Family f(out, {{"x dx", {T, {m, k}}},
                   {"wide", {T, {m, k}, -2, 2}},
                   {"w", {T, {k, n}}},
                   {"turned", {T, {n, k}}},
                   {"b", {T, {n}}},
                   {"y", {T, {m, n}}},
                   {"pre made", {T, {m, n}, -3, 3}},
                   {"dw sum", {F32, {k, n}}},
                   {"dw_transposed", {F32, {n, k}}},
                   {"db bias_sum", {F32, {n}}}});
    f.add("linear", "linear x w b > y", tolerance);
    f.add("linear without bias", "linear x w > y", tolerance);
    f.add("linear transposed", {"linear x turned b > y", transposed}, tolerance);
    f.add("linear relu", {"linear x w b > y", activated("relu")}, tolerance);
    f.add("linear gelu", {"linear x w b > y", activated("gelu")}, tolerance);
    f.add("linear_dx", "linear_dx y w > dx", tolerance);
    f.add("linear_dx transposed", {"linear_dx y turned > dx", transposed}, tolerance);
    f.add("linear_dw", "linear_dw x y > dw db", tolerance);
    f.add("linear_dw without bias", "linear_dw x y > dw", tolerance);
    f.add("linear_dw transposed", {"linear_dw x y > dw_transposed db", transposed}, tolerance);
    f.add("linear_dw_add", "linear_dw_add x y sum bias_sum > dw db", tolerance);
    f.add("linear_dw_add in place", "linear_dw_add x y dw db > dw db", tolerance);
    f.add("linear_dw_add without bias", "linear_dw_add x y dw > dw", tolerance);
    f.add("linear_dw_add transposed", {"linear_dw_add x y dw_transposed db > dw_transposed db", transposed}, tolerance);
    f.add("linear_gelu", "linear_gelu wide w b > pre made", 2 * tolerance);
    f.add("linear_gelu transposed, without bias", {"linear_gelu wide turned > pre made", transposed}, 2 * tolerance);
    // Reads the gradient of the layer's result and the values before gelu; returns the gradient of those values.
    f.add("linear_dx_gelu", "linear_dx_gelu wide turned pre > made", 2 * tolerance);
    f.add("linear_dx_gelu transposed", {"linear_dx_gelu wide w pre > made", transposed}, 2 * tolerance);
  }
  return out;
}

namespace {

using Sizes = std::vector<std::pair<int64_t, int64_t>>;

void add_norms(std::vector<Case>& out, int64_t rows, int64_t n) {
  const Slot x{T, {rows, n}}, vector{T, {n}}, grad{F32, {n}}, statistic{F32, {rows}};
  const Line rms{"rmsnorm x gamma > y rstd"}, layer{"layernorm x gamma beta > y mean rstd"};
  Family norms(out, {{"x y dy dx far", x}, {"gamma beta", vector}, {"mean rstd", statistic}, {"dgamma dbeta", grad}});
  if (n > 1) {
    const Line huge{"scale x > far", make_attrs({{"factor", 1e30}})};
    norms.add("rmsnorm of squares that no f32 holds", "rmsnorm far gamma > y rstd", 3e-6, {huge});
    norms.add("layernorm of squares that no f32 holds", "layernorm far gamma beta > y mean rstd", 3e-6, {huge});
    norms.add("rmsnorm", rms, 3e-6);
    norms.add("rmsnorm_grad", "rmsnorm_grad x dy gamma rstd > dx dgamma", 5e-6, {rms});
    norms.add("layernorm", layer, 3e-6);
    norms.add("layernorm_grad", "layernorm_grad x dy gamma mean rstd > dx dgamma dbeta", 5e-6, {layer});
  }
  norms.add("bias", "bias x beta > y");
  norms.add("bias in place", "bias x beta > x");
  norms.add("bias_grad", "bias_grad x > dbeta");
  norms.add("bias_grad_add", "bias_grad_add x dgamma > dbeta");
  norms.add("bias_grad_add in place", "bias_grad_add x dbeta > dbeta");
}

void add_losses(std::vector<Case>& out, int64_t rows, int64_t n) {
  Family losses(out, {{"logits", {T, {rows, n}, -8, 8}},
                      {"deep", {T, {rows, n}, -300, -200}},                    // exp(200) overflows f32
                      {"targets", {I32, {rows}, -1, static_cast<double>(n)}},  // -1: ignored
                      {"shares", {F32, {rows}, 0, 3}},
                      {"loss", {F32, {}}},
                      {"lse", {F32, {rows}}},
                      {"dx", {T, {rows, n}}}});
  const Line loss{"cross_entropy logits targets > loss lse", scaled()};
  const Line in_place{"cross_entropy_grad logits targets lse > logits", scaled()};
  losses.add("cross_entropy", loss, 3e-6);
  losses.add("cross_entropy_grad", {"cross_entropy_grad logits targets lse > dx", scaled()}, 3e-6, {loss});
  losses.add("cross_entropy of deep logits", {"cross_entropy deep targets > loss lse", scaled()}, 3e-6);
  losses.add("cross_entropy_grad in place", in_place, 3e-6, {loss});
  losses.add("cross_entropy_and_grad", {"cross_entropy_and_grad logits targets > loss lse dx", scaled()}, 3e-6);
  losses.add("cross_entropy_and_grad in place", {"cross_entropy_and_grad logits targets > loss lse logits", scaled()},
             3e-6, {}, {loss, in_place});
  const Attrs smoothed = make_attrs({{"scale", 0.037}, {"label_smoothing", 0.1}});
  const Line shared{"cross_entropy logits targets shares > loss lse", smoothed},
      shared_in_place{"cross_entropy_grad logits targets lse shares > logits", smoothed};
  losses.add("cross_entropy with shares, smoothed", shared, 3e-6);
  losses.add("cross_entropy_grad with shares, smoothed",
             {"cross_entropy_grad logits targets lse shares > dx", smoothed}, 3e-6, {shared});
  losses.add("cross_entropy_and_grad with shares, smoothed",
             {"cross_entropy_and_grad logits targets shares > loss lse dx", smoothed}, 3e-6);
  losses.add("cross_entropy_and_grad with shares, smoothed, in place",
             {"cross_entropy_and_grad logits targets shares > loss lse logits", smoothed}, 3e-6, {},
             {shared, shared_in_place});
}

void add_other_losses(std::vector<Case>& out, int64_t rows, int64_t n) {
  const Attrs warm = make_attrs({{"scale", 0.037}, {"temperature", 1.7}});
  Family more(out, {{"logits", {T, {rows, n}, -8, 8}},
                    {"deep", {T, {rows, n}, -300, -200}},
                    {"teacher", {T, {rows, n}, -8, 8}},
                    {"targets", {I32, {rows}, -1, static_cast<double>(n)}},
                    {"loss counted", {F32, {}}},
                    {"lse dlse", {F32, {rows}}},
                    {"sums", {F32, {n}}},
                    {"dx", {T, {rows, n}}}});
  more.add("kl", {"kl logits teacher > loss", warm}, 3e-6);
  more.add("kl_grad", {"kl_grad logits teacher > dx", warm}, 3e-6);
  more.add("logsumexp", "logsumexp logits > lse", 3e-6);
  more.add("logsumexp of deep logits", "logsumexp deep > lse", 3e-6);
  more.add("logsumexp_grad", "logsumexp_grad logits lse dlse > dx", 3e-6, {{"logsumexp logits > lse"}});
  if (n < 1000) {  // columns are experts
    more.add("softmax_sums", "softmax_sums logits > sums", 3e-6);
    more.add("softmax_sums_grad", "softmax_sums_grad logits sums > dx", 3e-6);
  }
  more.add("accuracy", {"accuracy logits targets > loss counted", scaled()}, 1e-6);
}

// The last columns are padding, whose values must not count.
void add_padded_losses(std::vector<Case>& out, int64_t rows, int64_t n) {
  if (const int64_t vocab = n - (n + 7) / 8; vocab > 0) {
    const Attrs padded = make_attrs({{"scale", 0.037}, {"vocab", vocab}, {"label_smoothing", 0.25}});
    const Line padded_loss{"cross_entropy logits few_targets > loss lse", padded},
        padded_in_place{"cross_entropy_grad logits few_targets lse > logits", padded};
    Family few(out, {{"logits", {T, {rows, n}, -8, 8}},
                     {"few_targets", {I32, {rows}, -1, static_cast<double>(vocab)}},
                     {"loss", {F32, {}}},
                     {"lse", {F32, {rows}}},
                     {"dx", {T, {rows, n}}}});
    few.add("cross_entropy of padded logits", padded_loss, 3e-6);
    few.add("cross_entropy_grad of padded logits", {"cross_entropy_grad logits few_targets lse > dx", padded}, 3e-6,
            {padded_loss});
    few.add("cross_entropy_and_grad of padded logits",
            {"cross_entropy_and_grad logits few_targets > loss lse dx", padded}, 3e-6);
    few.add("cross_entropy_and_grad of padded logits in place",
            {"cross_entropy_and_grad logits few_targets > loss lse logits", padded}, 3e-6, {},
            {padded_loss, padded_in_place});
  }
}

// The third of four ranks: its columns start at 2n, and the vocabulary ends among them.
void add_split_losses(std::vector<Case>& out, int64_t rows, int64_t n) {
  for (int64_t vocab : {2 * n + (n + 1) / 2, 4 * n}) {
    Family split(out, {{"logits", {T, {rows, n}, -8, 8}},
                       {"targets", {I32, {rows}, -1, static_cast<double>(vocab)}},
                       {"top lse", {F32, {rows}}},
                       {"shares", {F32, {rows}, 0, 3}},
                       {"sums", {F32, {2, rows}}},
                       {"loss", {F32, {}}},
                       {"dx", {T, {rows, n}}}});
    const Attrs share = make_attrs({{"scale", 0.037}, {"vocab", vocab}, {"axis", "dp"}});
    const Line top{"cross_entropy_max logits > top", share}, sum{"cross_entropy_sums logits targets top > sums", share},
        finish{"cross_entropy_finish sums top logits targets > loss lse", share};
    split.add("cross_entropy_max", top, 0);
    split.add("cross_entropy_sums", sum, 3e-6, {top});
    split.add("cross_entropy_finish", finish, 3e-6, {top, sum});
    const Attrs smoothed_share =
        make_attrs({{"scale", 0.037}, {"vocab", vocab}, {"axis", "dp"}, {"label_smoothing", 0.1}});
    const Line smoothed_sum{"cross_entropy_sums logits targets top > sums", smoothed_share};
    split.add("cross_entropy_sums, smoothed", smoothed_sum, 3e-6, {top});
    split.add("cross_entropy_finish with shares, smoothed",
              {"cross_entropy_finish sums top logits targets shares > loss lse", smoothed_share}, 3e-6,
              {top, smoothed_sum});
    split.add("cross_entropy_grad of a rank", {"cross_entropy_grad logits targets lse > dx", share}, 3e-6,
              {top, sum, finish});
  }
}

void add_rows(std::vector<Case>& out) {
  for (auto [rows, n] : Sizes{{1, 1},
                              {3, 5},
                              {7, 33},
                              {17, 257},
                              {130, 24},
                              {67, 136},
                              {37, 1024},
                              {2, 2056},
                              {3, 8008},
                              {2, 12000},
                              {1, 12296}})
    for (const auto add : {add_norms, add_other_losses, add_losses, add_padded_losses, add_split_losses})
      add(out, rows, n);
}

// A fused residual and norm, for each way in which a kernel holds a row.
void add_residual_norms(std::vector<Case>& out) {
  for (auto [rows, n] : Sizes{{7, 33}, {130, 24}, {37, 1024}, {3, 8008}, {2, 12000}, {1, 12296}}) {
    Family f(out, {{"x residual y sum dy dsum dx dx_alone", {T, {rows, n}}},
                   {"gamma beta", {T, {n}}},
                   {"mean rstd", {F32, {rows}}},
                   {"dgamma dbeta", {F32, {n}}}});
    f.add("add_rmsnorm", "add_rmsnorm x residual gamma > y sum rstd", 3e-6, {},
          {"add x residual > sum", "rmsnorm sum gamma > y rstd"});
    f.add("rmsnorm_grad_add", "rmsnorm_grad_add x dy gamma rstd dsum > dx dgamma", 5e-6, {"rmsnorm x gamma > y rstd"},
          {"rmsnorm_grad x dy gamma rstd > dx_alone dgamma", "add dsum dx_alone > dx"});
    f.add("add_layernorm", "add_layernorm x residual gamma beta > y sum mean rstd", 3e-6, {},
          {"add x residual > sum", "layernorm sum gamma beta > y mean rstd"});
    f.add("layernorm_grad_add", "layernorm_grad_add x dy gamma mean rstd dsum > dx dgamma dbeta", 5e-6,
          {"layernorm x gamma beta > y mean rstd"},
          {"layernorm_grad x dy gamma mean rstd > dx_alone dgamma dbeta", "add dsum dx_alone > dx"});
  }
}

void add_tables(std::vector<Case>& out) {
  for (int64_t d : {1, 7, 33, 40}) {
    Family f(out, {{"tokens", {I32, {3, 5}, 0, 11}},
                   {"of_four_ranks", {I32, {3, 5}, 0, 44}},
                   {"few_tokens", {I32, {3, 5}, 0, 9}},
                   {"table", {T, {11, d}}},
                   {"positions", {T, {6, d}}},
                   {"y", {T, {3, 5, d}}},
                   {"dtable", {F32, {11, d}}},
                   {"dpositions", {F32, {6, d}}},
                   {"x moved", {T, {3, 6, d}}},
                   {"places", {T, {25, d}}},
                   {"dplaces", {F32, {25, d}}},
                   {"many_places", {T, {97, d}}},
                   {"dmany", {F32, {97, d}}}});
    Attrs sizes = make_attrs({{"vocab", 11}, {"positions", 6}});
    f.add("embedding", "embedding tokens table > y");
    f.add("embedding with positions", "embedding tokens table positions > y");
    f.add("embedding_grad", {"embedding_grad tokens y > dtable dpositions", sizes});
    sizes.set("positions", 0);
    f.add("embedding_grad without positions", {"embedding_grad tokens y > dtable", sizes});
    sizes.set("axis", "dp");
    f.add("embedding of a rank", {"embedding of_four_ranks table > y", sizes});
    f.add("embedding_grad of a rank", {"embedding_grad of_four_ranks y > dtable", sizes});
    sizes.set("valid", 44);  // of rows of which the last rank has only padding
    f.add("embedding of a rank with padding elsewhere", {"embedding of_four_ranks table > y", sizes});
    f.add("embedding_grad of a rank with padding elsewhere", {"embedding_grad of_four_ranks y > dtable", sizes});
    sizes.erase("axis");
    sizes.set("valid", 9);
    f.add("embedding of a padded table", {"embedding few_tokens table > y", sizes});
    f.add("embedding_grad of a padded table", {"embedding_grad few_tokens y > dtable", sizes});
    for (int64_t chunks : {1, 2}) {
      const Attrs tokens_of = make_attrs({{"tokens_axis", "dp"}, {"chunks", chunks}});
      f.add("positions", {"positions x places > moved", tokens_of});
      f.add("positions_grad", {"positions_grad x > dplaces", tokens_of});
      const Attrs runs_of = make_attrs({{"tokens_axis", "dp,dp"}, {"chunks", chunks}});
      f.add("positions of a run", {"positions x many_places > moved", runs_of});
      f.add("positions_grad of a run", {"positions_grad x > dmany", runs_of});
    }
  }
  for (int64_t vocab : {7, 600}) {  // rows with many tokens, and many rows with few
    Family f(out, {{"tokens", {I32, {2, 1301}, 0, static_cast<double>(vocab)}},
                   {"y", {T, {2, 1301, 12}}},
                   {"dtable", {F32, {vocab, 12}}},
                   {"dpositions", {F32, {1400, 12}}}});
    f.add("embedding_grad of many tokens",
          {"embedding_grad tokens y > dtable dpositions", make_attrs({{"vocab", vocab}, {"positions", 1400}})}, 1e-5);
  }
}

// A round of a dropless mixture: the second one, unless the first has all tokens. `attrs`: of dispatch and combine.
void add_round(Family& f, const Attrs& attrs, const Attrs& of_route) {
  Attrs places = of_route, round = make_attrs({{"round", attrs.integer("capacity") == 0 ? 0 : 1}});
  places.set("capacity", int64_t{0});
  const Line any{"route logits > weights places counts filled", places};
  for (const char* name : {"experts", "capacity", "batch", "tokens"}) round.set(name, attrs.integer(name));
  const Line sent{"dispatch x places > y", round}, packs{"pack_rows y filled > packed", round};
  f.add("dispatch of a round", sent, 0, {any}).leaves = true;
  f.add("dispatch_grad of a round", {"dispatch_grad places y > x", round}, 1e-6, {any});
  f.add("dispatch_grad added to other rounds", {"dispatch_grad places y joined > x", round}, 1e-6, {any});
  f.add("dispatch_grad added in place", {"dispatch_grad places y x > x", round}, 1e-6, {any});
  f.add("combine of a round", {"combine y places weights > joined", round}, 1e-6, {any});
  f.add("combine added to other rounds", {"combine y places weights x > joined", round}, 1e-6, {any});
  f.add("combine added in place", {"combine y places weights x > x", round}, 1e-6, {any});
  f.add("combine_grad of a round", {"combine_grad y places weights joined > dy dweights", round}, 3e-6, {any}).leaves =
      true;
  f.add("combine_grad added in place", {"combine_grad y places weights joined dweights > dy dweights", round}, 3e-6,
        {any})
      .leaves = true;
  Attrs last = round;  // without any token
  last.set("round", attrs.integer("tokens")), last.set("whole", int64_t{1});
  f.add("dispatch of no token", {"dispatch x places > y", last}, 0, {any});
  f.add("combine_grad of no token", {"combine_grad y places weights joined > dy dweights", last}, 0, {any});
  f.add("unpack_rows of a round", {"unpack_rows packed filled > y", round}, 0, {any, sent, packs}).leaves = true;
  f.add("expert_linear of a round", {"expert_linear y w filled > wide", round}, 3e-6, {any, sent}).leaves = true;
  f.add("expert_linear_dx of a round", {"expert_linear_dx y turned filled > wide", round}, 3e-6, {any, sent}).leaves =
      true;
  f.add("expert_linear_dw of a round", {"expert_linear_dw y wide filled > dw", round}, 3e-6, {any, sent});
  f.add("expert_linear_dw_add of a round", {"expert_linear_dw_add y wide filled dw > dw", round}, 3e-6, {any, sent});
}

// Experts' ops on tokens dispatched by route, with empty slots, and for devices that skip them if most are empty.
void add_empty_slots(Family& f, const Line& route, const Line& send) {
  for (const double routed : {1.0, 0.1}) {
    Attrs part;
    part.set("routed", routed);
    f.add("expert_linear of slots", {"expert_linear y w filled > wide", part}, 3e-6, {route, send});
    f.add("expert_linear_dx of slots", {"expert_linear_dx y turned filled > wide", part}, 3e-6, {route, send});
    f.add("expert_linear_dw of slots", {"expert_linear_dw y wide filled > dw", part}, 3e-6, {route, send});
    f.add("expert_linear_dw_add of slots", {"expert_linear_dw_add y wide filled sum > dw", part}, 3e-6, {route, send});
  }
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> out;
  add_rows(out);
  add_residual_norms(out);
  add_tables(out);
  return out;
}

std::vector<Case> moe_cases() {
  std::vector<Case> out;
  struct Sizes {
    int64_t batch, tokens, experts, k, capacity, width;
  };
  const std::vector<Sizes> sizes = {{1, 1, 1, 1, 0, 1},     {2, 5, 4, 2, 3, 7},   {3, 7, 8, 3, 0, 33},
                                    {2, 70, 4, 2, 40, 300}, {2, 96, 6, 1, 0, 33}, {2, 400, 40, 3, 50, 40}};
  for (const Sizes& s : sizes) {
    const int64_t n = s.batch * s.tokens, slots = s.capacity == 0 ? n : s.capacity,
                  columns = s.width % 8 == 0 ? 136 : 17;
    Family f(out, {{"logits dlogits", {T, {s.batch, s.tokens, s.experts}, -3, 3}},
                   {"weights dweights", {F32, {n, s.k}}},
                   {"places", {I32, {n, s.k}}},
                   {"filled", {I32, {s.experts, 1}}},
                   {"all", {I32, {s.experts, 1}, static_cast<double>(slots), static_cast<double>(slots + 1)}},
                   {"counts bias", {F32, {s.experts}}},
                   {"runs", {I32, {s.batch, s.tokens, 2}, 0, 5}},
                   {"x joined", {T, {s.batch, s.tokens, s.width}}},
                   {"y dy slots dx_slots dup", {T, {s.experts, slots, s.width}}},
                   {"packed", {T, {1, s.experts, slots, s.width}}},
                   {"w", {T, {s.experts, s.width, columns}}},
                   {"turned", {T, {s.experts, columns, s.width}}},
                   {"wide turned_wide", {T, {s.experts, slots, columns}}},
                   {"dw sum", {F32, {s.experts, s.width, columns}}}});
    Attrs attrs = make_attrs({{"k", s.k}, {"capacity", s.capacity}, {"experts", s.experts}, {"batch", s.batch}});
    attrs.set("tokens", s.tokens), attrs.set("aux", 0.3);
    const Attrs whole = make_attrs({{"k", s.k}, {"aux", 0.3}, {"capacity", s.capacity}});
    Attrs share = whole;
    share.set("tokens", 4 * n), share.set("scale", 0.5 / static_cast<double>(n));
    const Line route{"route logits > weights places counts filled", attrs}, send{"dispatch x places > y", attrs};
    f.add("route", route);
    const char* const grad = "route_grad logits weights dweights places counts > dlogits";
    for (const Attrs& a : {whole, share}) f.add("route_grad", {grad, a}, 1e-5, {route});
    f.add("route_grad without counts", {"route_grad logits weights dweights places > dlogits", whole}, 2e-6, {route});
    for (const char* scores : {"softmax", "sigmoid"})
      for (const int64_t renormalise : {0, 1}) {
        Attrs a = make_attrs({{"k", s.k}, {"capacity", s.capacity}, {"aux", 0.3}, {"z", 0.2}, {"factor", 2.5}});
        a.set("scores", std::string(scores)), a.set("renormalise", renormalise);
        const std::string kind = fmt::format("{}{}", scores, renormalise != 0 ? "" : ", not divided");
        const Line plain{"route logits > weights places counts filled", a};
        f.add("route by " + kind, plain, 2e-6);
        f.add("route_grad by " + kind, {grad, a}, 2e-5, {plain});
        a.set("biased", int64_t{1}), a.set("runs", int64_t{1});
        if (s.experts % 4 == 0) a.set("groups", s.experts / 2), a.set("groups_kept", (s.k + 1) / 2);
        const Line all{"route logits bias runs > weights places counts filled", a};
        f.add("route with all by " + kind, all, 2e-6);
        f.add("route_grad with all by " + kind, {grad, a}, 2e-5, {all});
      }
    const Attrs runs = make_attrs({{"runs", 1}});
    f.add("softmax_sums of documents", {"softmax_sums logits runs > counts", runs}, 3e-6);
    f.add("softmax_sums_grad of documents", {"softmax_sums_grad logits bias runs > dlogits", runs}, 3e-6);
    f.add("dispatch", send, 0, {route});
    f.add("dispatch_grad", "dispatch_grad places y > x", 1e-6, {route});
    f.add("combine", {"combine y places weights > joined", attrs}, 1e-6, {route});
    f.add("combine_grad", "combine_grad y places weights joined > dy dweights", 3e-6, {route});
    f.add("expert_linear", "expert_linear y w all > wide", 3e-6);
    f.add("expert_linear_dx", "expert_linear_dx wide w all > y", 3e-6);
    f.add("expert_linear_dw", "expert_linear_dw y wide all > dw", 3e-6);
    f.add("expert_linear_dw_add", "expert_linear_dw_add y wide all sum > dw", 3e-6);
    f.add("expert_linear_dw_add in place", "expert_linear_dw_add y wide all dw > dw", 3e-6);
    f.add("expert_activation", "expert_activation wide all > turned_wide", 1e-5);
    f.add("expert_activation of two", "expert_activation y dy all > slots", 1e-5);
    f.add("sum of slots", {"expert_activation y dy all > slots", make_attrs({{"sum", 1}})}, 1e-6);
    f.add("expert_activation_grad", "expert_activation_grad y dy all > slots", 1e-5);
    f.add("expert_activation_grad of two", "expert_activation_grad y dy slots all > dx_slots dup", 1e-5);
    f.add("pack_rows", "pack_rows y all > packed", 0);
    f.add("unpack_rows", "unpack_rows packed all > y", 0);
    add_round(f, attrs, whole);
    add_empty_slots(f, route, send);
  }
  return out;
}

std::vector<Case> pointwise_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 33, 72, 128, 1029, 8200}) {
    Family f(out, {{"x y", {T, {3, n}}}, {"sample masked", {T, {3, 4, n}}}});
    Attrs dropped = make_attrs({{"p", 0.3}, {"key", 5}, {"samples", 8}, {"first", 2}});
    dropped.set("rows_axis", "dp"), dropped.set("split_axis", "dp");
    f.add("dropout of rows", {"dropout x > y", dropped});
    dropped.set("tokens_axis", "dp"), dropped.set("chunks", 2);
    f.add("dropout of tokens", {"dropout sample > masked", dropped});
    f.add("dropout in place", {"dropout sample > sample", dropped});
    dropped.set("tokens_axis", "dp,dp");
    f.add("dropout of a run of tokens", {"dropout sample > masked", dropped});
  }
  for (int64_t n : {1, 7, 33, 1029, 8200}) {
    Family f(out, {{"x y z dx dy", {T, {n}, -4, 4}},
                   {"above", {T, {n}, 0, 1}},
                   {"sum", {F32, {}}},
                   {"one", {F32, {1}}},
                   {"single", {F32, {n}}},
                   {"half", {BF16, {n}}},
                   {"i j k", {I64, {n}, 0, 100}}});
    for (const char* approximate : {"tanh", "none"}) {
      f.add("gelu", {"gelu x > y", form(approximate)}, 2e-6);
      f.add("gelu_dx", {"gelu_dx x y > dx", form(approximate)}, 2e-6);
    }
    f.add("gelu_dx in place", "gelu_dx x y > y", 2e-6);
    f.add("relu", "relu x > y");
    f.add("relu in place", "relu x > x");
    f.add("relu_dx", "relu_dx x y > dx");
    f.add("tanh", "tanh x > y", 2e-6);
    f.add("tanh in place", "tanh x > x", 2e-6);
    f.add("tanh_dx", "tanh_dx x y > dx", 2e-6);
    f.add("silu_mul", "silu_mul x y > z", 2e-6);
    f.add("silu_mul_grad", "silu_mul_grad x y z > dx dy", 2e-6);
    f.add("silu_mul_grad in place", "silu_mul_grad x y z > x y", 2e-6);
    f.add("add", "add x y > z");
    f.add("add in place", "add x y > x");
    f.add("mul", "mul x y > z");
    f.add("scale", {"scale x > y", make_attrs({{"factor", 0.3}})});
    f.add("cast up", {"cast x > single", cast_to("f32")}, 0);
    f.add("cast down", {"cast single > half", cast_to("bf16")});
    f.add("copy", "copy x > y", 0);
    f.add("copy in place", "copy x > x", 0);
    f.add("add of whole numbers", "add i j > k", 0).bf16 = false;
    f.add("mse", {"mse x y > sum", scaled()}, 2e-6);
    f.add("mse_grad", {"mse_grad x y > dx", scaled()});
    f.add("bce", {"bce x above > sum", scaled()}, 2e-6);
    f.add("bce_grad", {"bce_grad x above > dx", scaled()}, 2e-6);
    f.add("squares", "squares x > one", 2e-6);
    f.add("squares_grad", {"squares_grad x one > single", make_attrs({{"factor", 0.5}})}, 2e-6);
    f.add("mean_square", {"mean_square x > sum", scaled()}, 2e-6);
    f.add("mean_square_grad", {"mean_square_grad x > dx", scaled()});
    f.add("mean", {"mean above > sum", scaled()}, 2e-6);
    f.add("mean_grad", {"mean_grad x > dx", scaled()});
  }
  return out;
}

std::vector<Case> piece_cases() {
  std::vector<Case> out;
  const Attrs attrs = make_attrs({{"pieces", 4}, {"dim", 1}, {"axis", "dp"}});
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 2, 5}, {3, 2, 16}, {70, 33, 17}})
    for (std::optional<Dtype> dtype : {T, I32, I64}) {
      Family f(out, {{"apart", {dtype, {4, a, b, c}, -99, 99}},
                     {"whole", {dtype, {a, 4 * b, c}, -99, 99}},
                     {"piece", {dtype, {a, b, c}}},
                     {"numbers", {dtype, {a, 4 * b, c}}}});
      for (const auto& [name, line] : {std::pair{"join_pieces", "join_pieces apart > whole"},
                                       {"cut_pieces", "cut_pieces whole > apart"},
                                       {"take_piece", "take_piece whole > piece"}})
        f.add(name, {line, attrs}, 0).bf16 = !dtype.has_value();
      if (dtype == I32)
        f.add("take_slots", {"take_slots whole > numbers", make_attrs({{"pieces", 4}, {"run", 7}, {"axis", "dp"}})}, 0);
    }
  return out;
}

// Cases that agree bitwise.
std::vector<Case> source_cases() {
  std::vector<Case> out;
  Family f(out, {{"flat", {T, {1408}}},
                 {"shard", {T, {352}}},
                 {"split", {T, {48}}},
                 {"split_shard", {T, {12}}},
                 {"padded", {T, {96}}},
                 {"padded_shard", {T, {24}}},
                 {"x", {T, {7}}},
                 {"three", {T, {3}}},
                 {"two", {T, {2}}},
                 {"whole", {I64, {5}}},
                 {"count", {I64, {}, 0, 4}},
                 {"five", {T, {5}}},
                 {"random", {I64, {33}}}});
  Attrs init = make_attrs({{"starts", Counts{0, 16, 38, 48, 1031}},
                           {"counts", Counts{13, 21, 9, 977, 371}},
                           {"kinds", Counts{1, 3, 2, 4, 3}},
                           {"scales", Numbers{0, 0.02, 0.7, 0.1, 1}},
                           {"keys", Counts{3, 5, 8, 13, 21}}});
  f.add("init_params", {"init_params > flat", init}, 0);
  init.set("axis", "dp");  // rank 2 of 4: elements [704, 1056)
  f.add("init_params of a shard", {"init_params > shard", init}, 0);
  // A fused weight [3, 5|4|5] split over four ranks, and [9, 4] by its rows: 3·(2+1+2) and 3·4 elements here.
  Attrs split = make_attrs({{"starts", Counts{0, 16, 32}},
                            {"counts", Counts{15, 7, 12}},
                            {"kinds", Counts{3, 1, 4}},
                            {"scales", Numbers{0.02, 0, 1}},
                            {"keys", Counts{3, 5, 8}},
                            {"split_outer", Counts{3, 0, 1}},
                            {"split_block_count", Counts{3, 0, 1}},
                            {"split_blocks", Counts{5, 4, 5, 36}},
                            {"split_slice", Counts{1, 0, 4}},
                            {"split_axis", "dp,,dp"}});
  f.add("init_params of split parameters", {"init_params > split", split}, 0);
  Attrs parts = split;
  parts.set("split_parts", "dp,,dp");
  f.add("init_params of parts that are split", {"init_params > split", parts}, 0);
  split.set("axis", "dp");
  f.add("init_params of a shard of split parameters", {"init_params > split_shard", split}, 0);
  // [3, 5] by its columns and [9, 4] by its rows, padded to 4 columns a rank and to 16 rows.
  Attrs padded = make_attrs({{"starts", Counts{0, 16, 32}},
                             {"counts", Counts{12, 7, 64}},
                             {"kinds", Counts{3, 1, 4}},
                             {"scales", Numbers{0.02, 0, 1}},
                             {"keys", Counts{3, 5, 8}},
                             {"split_outer", Counts{3, 0, 1}},
                             {"split_block_count", Counts{1, 0, 1}},
                             {"split_blocks", Counts{5, 36}},
                             {"split_slice", Counts{1, 0, 4}},
                             {"split_axis", "dp,,"},
                             {"split_grain", Counts{4, 1, 16}}});
  f.add("init_params of padded parameters", {"init_params > padded", padded}, 0);
  padded.set("axis", "dp");
  f.add("init_params of a shard of padded parameters", {"init_params > padded_shard", padded}, 0);
  f.add("fill", {"fill > x", make_attrs({{"value", 1.7}})}, 0);
  f.add("values", {"values > three", make_attrs({{"values", Numbers{1, -2.5, 3}}})}, 0);
  f.add("values of whole numbers", {"values > two", make_attrs({{"values", Counts{4, -1}}})}, 0);
  f.add("iota", {"iota > whole", make_attrs({{"start", 3}, {"step", 2}})}, 0).bf16 = false;
  f.add("iota of a count", {"iota count > five", make_attrs({{"start", 0.5}})}, 0);
  f.add("random_int", {"random_int > random", make_attrs({{"low", -3}, {"high", 9}, {"key", 4}})}, 0).bf16 = false;
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& family : {matrix_cases(), attention_cases(), attend_cases(), row_cases(), pointwise_cases(),
                             arithmetic_cases(), window_cases(), piece_cases(), view_cases(), training_cases(),
                             source_cases(), moe_cases(), attention_block_cases(), decode_cases()})
    all.insert(all.end(), family.begin(), family.end());
  return all;
}

}  // namespace prun
