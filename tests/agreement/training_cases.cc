// Optimizers, clipping, checks for finite numbers, fingerprints.
#include "tests/agreement/agreement_cases.h"
#include "tests/agreement/case_family.h"

namespace prun {
namespace {

Attrs adamw() { return make_attrs({{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}}); }
Attrs adam() {
  Attrs l2 = adamw();
  l2.set("l2", 1.0);
  return l2;
}

const Attrs kPlain = make_attrs({{"weight_decay", 0.1}});
const Attrs kHeavy = make_attrs({{"momentum", 0.9}, {"weight_decay", 0.1}});
const Attrs kAhead = make_attrs({{"momentum", 0.9}, {"nesterov", 1.0}, {"weight_decay", 0.1}});
const Attrs kSlow = make_attrs({{"beta1", 0.99999}, {"beta2", 0.9999999}, {"eps", 1e-8}, {"weight_decay", 0.1}});
const Attrs kSigns = make_attrs({{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}});

// Returns an update of a plan's own; results: the instructions that compute the parameter and the states.
Attrs update(const char* program, Counts results) {
  return make_attrs({{"program", program}, {"results", std::move(results)}, {"weight_decay", 0.1}});
}
// AdamW. x2 and x3: the averages, x4 to x6: learning rate, weight decay, number of the update.
const Attrs kOwnAdamw = update(
    "mul 0.9 x2; mul 0.1 x0; add r0 r1; mul 0.95 x3; mul 0.05 x0; mul r4 x0; add r3 r5; pow 0.9 x6; sub 1 r7; "
    "div r2 r8; pow 0.95 x6; sub 1 r10; div r6 r11; sqrt r12; add r13 1e-8; div r9 r14; mul x4 r15; mul x4 x5; "
    "sub 1 r17; mul x1 r18; sub r19 r16",
    {20, 2, 6});
const Attrs kOwnSgd = update("mul x2 x0; sub x1 r0", {1});
const Attrs kExchange = update("mul x1 1; add x2 x0", {1, 0});  // the state receives the old parameter

void add_own_updates(Family& f) {
  f.add("pointwise_update", {"pointwise_update grad param m v > param m v", kOwnAdamw}, 4e-6);
  f.add("pointwise_update, clipped", {"pointwise_update grad param m v clip > param m v", kOwnAdamw}, 4e-6);
  f.add("pointwise_update without state", {"pointwise_update grad param clip > param", kOwnSgd});
  f.add("pointwise_update that exchanges", {"pointwise_update grad param m > param m", kExchange});
  f.add("pointwise_update that skips", {"pointwise_update grad param m v skip > param m v", kOwnAdamw});
}

void add_updates(Family& f) {
  f.add("adamw", {"adamw grad param m v > param m v", adamw()}, 2e-6);
  f.add("adamw clipped", {"adamw grad param m v clip > param m v", adamw()}, 2e-6);
  f.add("adamw of averages that hardly move", {"adamw grad param m v > param m v", kSlow}, 2e-6);
  f.add("sgd", {"sgd grad param > param", kPlain});
  f.add("sgd clipped", {"sgd grad param clip > param", kPlain});
  f.add("sgd with momentum", {"sgd grad param m > param m", kHeavy});
  f.add("sgd with momentum, clipped", {"sgd grad param m clip > param m", kHeavy});
  f.add("sgd with Nesterov momentum", {"sgd grad param m > param m", kAhead});
  f.add("sgd with Nesterov momentum, clipped", {"sgd grad param m clip > param m", kAhead});
  f.add("adamw with l2", {"adamw grad param m v > param m v", adam()}, 2e-6);
  f.add("adamw with l2, clipped", {"adamw grad param m v clip > param m v", adam()}, 2e-6);
  f.add("lion", {"lion grad param m > param m", kSigns}, 2e-6);
  f.add("lion of averages that hardly move", {"lion grad param m > param m", kSlow}, 2e-6);
  f.add("lion clipped", {"lion grad param m clip > param m", kSigns}, 2e-6);
  f.add("ema", {"ema param m > m", make_attrs({{"decay", 0.9}})});
  f.add("adamw that skips", {"adamw grad param m v skip > param m v", adamw()});
  f.add("sgd that skips", {"sgd grad param skip > param", kPlain});
  f.add("sgd with momentum that skips", {"sgd grad param m skip > param m", kHeavy});
  f.add("lion that skips", {"lion grad param m skip > param m", kSigns});
}

// Returns the rule with four groups of parameters: in pieces of the op's `n` elements, or of the shards of all ranks.
Attrs in_pieces(Attrs rule, Counts starts, int64_t n, bool of_shards) {
  rule.set("piece_starts", std::move(starts));
  rule.set("piece_lr_factors", Numbers{1, 0.25, 2, 1});
  rule.set("piece_weight_decays", Numbers{0.1, 0, 0.5, 0});
  rule.erase("weight_decay");
  if (of_shards) rule.set("axis", "dp"), rule.set("shard", n);
  return rule;
}

void add_updates_of_groups(Family& f, int64_t n) {
  Attrs slower = adamw();
  slower.set("lr_factor", 0.25);
  f.add("adamw with a factor", {"adamw grad param m v > param m v", slower}, 2e-6);
  const int64_t quarter = n / 16 * 4;  // packs of 4 elements are in one piece
  const Counts uneven = {0, n / 3, n / 3 + n / 5, n - 1}, even = {0, quarter, 2 * quarter, 3 * quarter},
               shards = {0, 2 * n + n / 5, 2 * n + n / 2, 3 * n};
  for (const Counts& starts : {uneven, even, shards}) {
    const auto add = [&](const char* name, const char* line, const Attrs& attrs) {
      f.add(name, {line, in_pieces(attrs, starts, n, starts == shards)}, 2e-6);
    };
    add("adamw of pieces", "adamw grad param m v > param m v", adamw());
    add("adamw with l2, of pieces", "adamw grad param m v > param m v", adam());
    add("sgd of pieces", "sgd grad param > param", kPlain);
    add("sgd with momentum, of pieces", "sgd grad param m clip > param m", kHeavy);
    add("lion of pieces", "lion grad param m > param m", kSigns);
    add("pointwise_update of pieces", "pointwise_update grad param m > param m",
        update("mul x3 x0; mul x4 x1; sub x1 r0; sub r2 r1; add x2 x5", {3, 4}));
  }
}

// f32 in, bf16 out.
void add_casting_updates(Family& f, std::vector<Case>& out) {
  const Line cast{"cast master > low", make_attrs({{"dtype", "bf16"}})};
  const size_t casts = out.size();
  f.add("adamw_cast", {"adamw_cast grad master m v > master m v low", adamw()}, 2e-6, {},
        {{"adamw grad master m v > master m v", adamw()}, cast});
  f.add("adamw_cast clipped", {"adamw_cast grad master m v clip > master m v low", adamw()}, 2e-6, {},
        {{"adamw grad master m v clip > master m v", adamw()}, cast});
  f.add("adamw_cast with l2", {"adamw_cast grad master m v > master m v low", adam()}, 2e-6, {},
        {{"adamw grad master m v > master m v", adam()}, cast});
  f.add("sgd_cast with Nesterov momentum", {"sgd_cast grad master m > master m low", kAhead}, 1e-6, {},
        {{"sgd grad master m > master m", kAhead}, cast});
  f.add("sgd_cast", {"sgd_cast grad master > master low", kPlain}, 1e-6, {},
        {{"sgd grad master > master", kPlain}, cast});
  f.add("sgd_cast with momentum, clipped", {"sgd_cast grad master m clip > master m low", kHeavy}, 1e-6, {},
        {{"sgd grad master m clip > master m", kHeavy}, cast});
  for (size_t i = casts; i < out.size(); ++i) out[i].bf16 = false;
}

void add_norms(Family& f, int64_t n) {
  f.add("norm2", "norm2 grad m v > norm");
  f.add("norm2 of weighted tensors", {"norm2 grad m v > norm", make_attrs({{"weights", Numbers{0.5, 1, 0}}})});
  f.add("norm2 of tensors with whole weights", {"norm2 grad m v > norm", make_attrs({{"weights", Counts{1, 0, 2}}})});
  Attrs pieces = make_attrs({{"piece_starts", Counts{n / 3, 2 * n + n / 5, 2 * n + n / 2, 3 * n}},
                             {"piece_weights", Numbers{0.25, 0.5, 1, 7}}});
  f.add("norm2 of weighted pieces", {"norm2 grad > norm", pieces});
  for (const double size : {1e25, 1e-30})
    f.add("norm2 of numbers whose squares no f32 holds", "norm2 far > norm", 1e-6,
          {{"scale grad > far", make_attrs({{"factor", size}})}});
  pieces.set("axis", "dp");
  f.add("norm2 of weighted pieces of a shard", {"norm2 grad > norm", pieces});
}

// Muon's ops: wide, tall and joined matrices in vectors with gaps, of several owners.
void add_muon(std::vector<Case>& out) {
  Family f(out, {{"grad m direction", {F32, {5000}}},
                 {"param", {T, {5000}}},
                 {"joined", {F32, {2, 2500}}},
                 {"chunk", {F32, {9000}}},
                 {"clip", {F32, {}, 0.5, 0.6}},
                 {"skip", {F32, {}, -1, -1}}});
  const Attrs ahead = make_attrs({{"momentum", 0.95}, {"nesterov", 1.0}}),
              behind = make_attrs({{"momentum", 0.9}, {"nesterov", 0.0}});
  f.add("muon_momentum", {"muon_momentum grad param m > direction m", ahead});
  f.add("muon_momentum without Nesterov, clipped", {"muon_momentum grad param m clip > direction m", behind});
  f.add("muon_momentum that skips", {"muon_momentum grad param m skip > direction m", ahead});
  Attrs iterations = make_attrs({{"steps", 5.0}, {"a", 3.4445}, {"b", -4.775}, {"c", 2.0315}, {"norm_eps", 1e-7}});
  const auto matrices = [&](Counts of, Counts starts, Counts rows, Counts columns, Counts joined, Counts owners) {
    Counts offsets;
    int64_t next = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      offsets.push_back(next), next += rows[i] * columns[i] * (joined[i] > 0 ? 2 : 1) + 8;
    Attrs attrs = iterations;
    attrs.set("of", std::move(of)), attrs.set("starts", std::move(starts)), attrs.set("rows", std::move(rows));
    attrs.set("columns", std::move(columns)), attrs.set("joined", std::move(joined));
    attrs.set("owners", std::move(owners)), attrs.set("offsets", std::move(offsets)), attrs.set("axes", "dp");
    return attrs;
  };
  for (const int64_t owner : {0, 1, 2}) {
    f.add("orthogonalize",
          {"orthogonalize direction > chunk",
           matrices({0, 0, 0}, {8, 2100, 4100}, {20, 100, 1}, {100, 20, 30}, {0, 0, 0}, {0, owner, 2})},
          1e-4);
    f.add("orthogonalize joined matrices",
          {"orthogonalize joined direction > chunk",
           matrices({0, 0, 1}, {0, 1040, 32}, {8, 50, 10}, {130, 16, 90}, {1, 2, 0}, {owner, 1, owner})},
          1e-4);
  }
  Attrs rounded = matrices({0, 0, 0}, {8, 2100, 4100}, {20, 100, 1}, {100, 20, 30}, {0, 0, 0}, {0, 0, 2});
  rounded.set("tf32", int64_t{1});
  f.add("orthogonalize in TF32", {"orthogonalize direction > chunk", rounded}, 2e-2);
  for (const char* axis : {"", "dp"}) {
    Attrs apply = make_attrs({{"weight_decay", 0.1}, {"lr_factor", 0.5}, {"joined_axis", "dp"}, {"axis", axis}});
    apply.set("shard", int64_t{500}), apply.set("matrix_starts", Counts{0, 320, 2000, 4000});
    apply.set("matrix_counts", Counts{300, 1000, 1500, 1000}), apply.set("matrix_places", Counts{4000, 0, 100, 3000});
    apply.set("matrix_scales", Numbers{1, 2, 0.5, 1});
    f.add("muon", {"muon chunk param > param", apply});
    f.add("muon, clipped", {"muon chunk param clip > param", apply});
    f.add("muon that skips", {"muon chunk param skip > param", apply});
  }
}

// Adafactor's ops: matrices, experts and vectors in a vector with gaps, whole and as a shard that begins and ends
// within rows; with all rows, with parts of them, and with parts of columns.
void add_adafactor(std::vector<Case>& out) {
  Family f(out, {{"grad", {F32, {6000}}},
                 {"param", {T, {6000}}},
                 {"rows row_means", {F32, {420}, 0.01, 1}},
                 {"columns column_means", {F32, {1200}, 0.01, 1}},
                 {"norms", {F32, {16}, 0.5, 900}},
                 {"clip", {F32, {}, 0.5, 0.6}},
                 {"skip", {F32, {}, -1, -1}}});
  Attrs whole = make_attrs({{"beta2_decay", -0.8}, {"eps1", 1e-3}, {"eps2", 1e-3}, {"d", 1.0}, {"weight_decay", 0.1}});
  const auto set = [&](const char* name, Counts list) { whole.set(name, std::move(list)); };
  set("starts", {0, 2048, 4096, 5600}), set("leads", {1, 3, 1, 1}), set("rows", {40, 20, 300, 1});
  set("columns", {50, 30, 5, 333}), set("whole_rows", {40, 40, 300, 1}), set("whole_columns", {100, 30, 5, 333});
  set("whole_count", {4000, 3600, 1500, 333}), set("row_in", {0, 0, 0, -1}), set("row_at", {8, 48, 108, 0});
  set("column_in", {1, 1, 1, 1}), set("column_at", {0, 64, 160, 200}), set("norm_in", {0, 0, 0, 0});
  set("norm_at", {0, 2, 4, 6});
  Attrs shard = whole;
  shard.set("axis", "dp"), shard.set("shard", int64_t{1333});
  shard.set("piece_starts", Counts{0, 4096}), shard.set("piece_lr_factors", Numbers{0.5, 2});
  shard.set("piece_weight_decays", Numbers{0, 0.3});
  for (const Attrs& attrs : {whole, shard}) {
    Attrs clipped = attrs;
    clipped.set("clipped", int64_t{1});
    f.add("factor_means", {"factor_means grad param > rows columns", attrs}, 1e-5);
    f.add("factor_means, clipped", {"factor_means grad param clip > rows columns", clipped}, 1e-5);
    f.add("factor_norms", {"factor_norms grad param row_means column_means rows columns > rows columns norms", attrs},
          2e-5);
    f.add("factor_norms, clipped",
          {"factor_norms grad param row_means column_means rows columns clip > rows columns norms", clipped}, 2e-5);
    f.add("factor_norms that skips",
          {"factor_norms grad param row_means column_means rows columns skip > rows columns norms", clipped});
    f.add("adafactor", {"adafactor grad param rows columns norms > param", attrs}, 1e-5);
    f.add("adafactor, clipped", {"adafactor grad param rows columns norms clip > param", clipped}, 1e-5);
    f.add("adafactor that skips", {"adafactor grad param rows columns norms skip > param", clipped});
  }
}

void add_large_norms(std::vector<Case>& out) {
  // More elements than one thread block sums, split at unaligned positions.
  Family large(out, {{"flat", {F32, {70001}}}, {"other", {F32, {3}}}, {"norm", {F64, {}}}});
  Attrs cut = make_attrs(
      {{"piece_starts", Counts{33333, 140001, 140002, 170005}}, {"piece_weights", Numbers{0.25, 0.5, 1, 7}}});
  large.add("norm2 of large tensors", "norm2 flat other > norm");
  large.add("norm2 of pieces of a large tensor", {"norm2 flat > norm", cut});
  cut.set("axis", "dp");
  large.add("norm2 of pieces of a large shard", {"norm2 flat > norm", cut});
}

void add_clipping(std::vector<Case>& out) {
  for (double square : {0.0, 0.3, 9.0, 1e50, 1e-60}) {
    Family f(out, {{"square", {F64, {}, square, square}}, {"factor", {F32, {}}}, {"norm", {F64, {}}}});
    f.add("clip_coefficient", {"clip_coefficient square > factor norm", make_attrs({{"max", 1.0}})});
    f.add("clip_coefficient that clips nothing",
          {"clip_coefficient square > factor norm", make_attrs({{"max", 0.0}, {"skip", int64_t{1}}})});
  }
  {
    Family f(out, {{"x large", {F64, {}, 1e10, 1e10}}, {"factor", {F32, {}}}, {"norm", {F64, {}}}});
    f.add("clip_coefficient that skips",
          {"clip_coefficient large > factor norm", make_attrs({{"max", 1.0}, {"skip", int64_t{1}}})}, 1e-6,
          {{"scale x > large", make_attrs({{"factor", 1e300}})}});
  }
}

void add_finite_checks(std::vector<Case>& out) {
  // Numbers, infinities and NaNs, in more elements than one thread reads.
  const auto times = [](const char* line, double factor) { return Line{line, make_attrs({{"factor", factor}})}; };
  for (int64_t n : {1, 7, 40001})
    for (int64_t infinite : {0, 1}) {
      Family f(out, {{"x large none", {T, {n}}}, {"flags", {I32, {}}}});
      f.add("check_finite", {"check_finite x large none > flags", make_attrs({{"infinite", infinite}})}, 1e-6,
            {times("scale x > large", 1e300), times("scale large > none", 0)});
    }
  // On one rank of an axis only; and on a prefix of the tensor, which holds few of its infinities.
  for (int64_t root : {1, 2}) {
    Family f(out, {{"x large", {T, {9}}}, {"flags", {I32, {}}}});
    f.add("check_finite at a root", {"check_finite large > flags", make_attrs({{"root", root}, {"axis", "dp"}})}, 1e-6,
          {times("scale x > large", 1e300)});
  }
  for (double most : {2.0, 400.0, 10000.0}) {
    Family f(out, {{"x large", {T, {40001}}}, {"counts", {I64, {4}, 0, most}}, {"flags", {I32, {}}}});
    f.add("check_finite of a beginning", {"check_finite large counts > flags", make_attrs({{"counted", 1}})}, 1e-6,
          {times("scale x > large", 3.45e38)});
  }
}

}  // namespace

std::vector<Case> training_cases() {
  std::vector<Case> out;
  for (int64_t n : {1, 7, 1029, 20011}) {
    Family f(out, {{"grad master m", {F32, {n}}},
                   {"param", {T, {n}}},
                   {"v", {F32, {n}, 0.01, 1}},
                   {"clip", {F32, {}, 0.5, 0.6}},
                   {"skip", {F32, {}, -1, -1}},
                   {"low", {BF16, {n}}},
                   {"far", {F32, {n}}},
                   {"norm", {F64, {}}}});
    add_updates(f);
    add_own_updates(f);
    add_casting_updates(f, out);
    add_norms(f, n);
  }
  for (int64_t n : {1, 1029, 8192}) {
    Family f(out,
             {{"grad m", {F32, {n}}}, {"param", {T, {n}}}, {"v", {F32, {n}, 0.01, 1}}, {"clip", {F32, {}, 0.5, 0.6}}});
    add_updates_of_groups(f, n);
  }
  add_muon(out);
  add_adafactor(out);
  add_large_norms(out);
  add_clipping(out);
  add_finite_checks(out);
  for (int64_t n : {1, 40001}) {
    Family f(out, {{"x y", {T, {n}}}, {"counts", {I64, {3}, 0, 1000}}, {"prints", {I64, {3}}}});
    f.add("fingerprint", "fingerprint x counts y > prints");
  }
  return out;
}

}  // namespace prun
