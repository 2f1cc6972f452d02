// pointwise with each function and each way to broadcast, reductions, softmax, matmul and cumsum.
#include "prun/sdk/pointwise.h"
#include "tests/agreement/agreement_cases.h"
#include "tests/agreement/case_family.h"

namespace prun {
namespace {

Attrs program(std::string text) { return make_attrs({{"program", std::move(text)}}); }
Attrs reduction(const char* op, Counts dims, Counts kept = {}) {
  return make_attrs({{"op", std::string(op)}, {"dims", std::move(dims)}, {"kept", std::move(kept)}});
}
Attrs flag(const char* name) { return make_attrs({{name, 1}}); }

void add_functions(std::vector<Case>& out) {
  for (int64_t n : {1, 7, 513, 1029, 40000}) {
    Family f(out, {{"a b c y", {T, {n}, -3, 3}}, {"p q", {T, {n}, 0.2, 4}}});
    for (const sdk::PointwiseFunction& one : sdk::kPointwiseFunctions) {
      std::string text(one.name);
      for (int i = 0; i < one.operands; ++i) text += " x" + std::to_string(i);
      const char* reads[] = {"pointwise p > y", "pointwise p q > y", "pointwise a b c > y"};
      f.add(one.name.data(), {reads[one.operands - 1], program(text)}, 3e-6);
      const char* signed_reads[] = {"pointwise a > y", "pointwise a b > y", "pointwise a b c > y"};
      const bool positive = one.name == "log" || one.name.ends_with("sqrt") || one.name == "pow" || one.name == "div";
      if (!positive) f.add(one.name.data(), {signed_reads[one.operands - 1], program(text)}, 3e-6);
    }
    f.add("a program", {"pointwise a > y", program("mul x0 1.702; sigmoid r0; mul x0 r1")}, 3e-6);
    std::string many = "mul x0 1";  // results that are all read late, so that each has a slot
    for (int i = 2; i <= 24; ++i) many += "; mul x0 " + std::to_string(i);
    for (int i = 0; i < 23; ++i)
      many += "; " + std::string(i % 2 == 0 ? "sub" : "add") + " r" + std::to_string(i == 0 ? 23 : 23 + i) + " r" +
              std::to_string(i);
    f.add("a program with many results", {"pointwise a > y", program(many)}, 3e-5);
    f.add("numbers alone", {"pointwise a > y", program("add 1 2; mul x0 0; add r0 r1")}, 1e-6);
    f.add("equal elements", {"pointwise a > y", program("equal x0 x0; where r0 x0 7; less x0 x0; add r1 r2")}, 1e-6);
  }
}

void add_broadcasts(std::vector<Case>& out) {
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 5, 7}, {2, 3, 600}, {40, 33, 17}}) {
    Family f(out, {{"x y", {T, {a, b, c}}},
                   {"vector", {T, {c}}},
                   {"column", {T, {b, 1}}},
                   {"sample", {T, {a, 1, 1}}},
                   {"rows", {T, {b, c}}},
                   {"ends", {T, {a, c}}},
                   {"middle", {T, {b}}},
                   {"number", {T, {1}}}});
    const Attrs add = program("add x0 x1");
    for (const char* line : {"pointwise x vector > y", "pointwise x column > y", "pointwise x sample > y",
                             "pointwise x rows > y", "pointwise rows x > y", "pointwise x number > y"})
      f.add("broadcast", {line, add});
    f.add("broadcast both", {"pointwise sample rows > y", program("mul x0 x1")});
    f.add("broadcast four", {"pointwise x vector column sample > y", program("mul x0 x1; sub r0 x2; add r1 x3")}, 3e-6);
    f.add("broadcast other dims",
          {"pointwise ends middle > y",
           make_attrs({{"program", std::string("mul x0 x1")}, {"over", Counts{5, 2}}, {"shape", Shape{a, b, c}}})});
  }
}

// Instructions that the CPU computes in one loop: gates, and products of sums.
void add_chains(std::vector<Case>& out) {
  for (const int64_t n : {1, 37, 2000}) {
    Family f(out, {{"x y z", {T, {n}, -9, 9}}, {"row", {T, {1}, -3, 3}}});
    for (const char* gate : {"mul x0 1.702; sigmoid r0; mul x0 r1", "mul 1.702 x0; sigmoid r0; mul r1 x0",
                             "sigmoid x0; mul r0 x0", "mul x0 x0; sigmoid r0; mul r1 x0", "mul x0 -2; sigmoid r0",
                             "sigmoid x0; mul r0 x0; add r1 x0", "mul x0 2; sigmoid r0; mul r1 r1"})
      f.add("gate", {"pointwise x > y", program(gate)}, 3e-6);
    for (const char* gate :
         {"mul x0 x1; sigmoid r0; mul r1 x1", "mul x0 1.702; sigmoid r0; mul r1 x1", "mul x0 x1; sigmoid r0; mul r1 r0",
          "sub x0 x1; mul r0 x1; add r1 x0; mul r2 x0; mul r3 2"})
      f.add("gate of two", {"pointwise x z > y", program(gate)}, 3e-6);
    f.add("gate of a row", {"pointwise row x > y", program("mul x0 2; sigmoid r0; mul x0 r1; add r2 x1")}, 3e-6);
    f.add("gate in place", {"pointwise x > x", program("mul x0 1.702; sigmoid r0; mul x0 r1")}, 3e-6);
  }
}

// Operands as permutations, parts and repetitions of stored tensors, with short, long and strided runs.
void add_views(std::vector<Case>& out) {
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 5, 7}, {2, 3, 600}, {40, 33, 17}}) {
    Family f(out, {{"x y", {T, {a, b, c}}},
                   {"turned", {T, {b, a, c}}},
                   {"back", {T, {c, b, a}}},
                   {"wide", {T, {a, b, 2 * c + 3}}},
                   {"tall", {T, {a + 2, b, c}}},
                   {"long", {T, {a, b + 2, c}}},
                   {"layers", {T, {3, a, b, c}}},
                   {"deep", {T, {a, b, 5, c}}},
                   {"middle", {T, {b}}}});
    const auto add = [&](const char* name, const char* line, std::string views) {
      f.add(name, {line, make_attrs({{"program", std::string("mul x0 x1; sub r0 x0")},
                                     {"shape", Shape{a, b, c}},
                                     {"views", std::move(views)}})});
    };
    const auto part = [](int64_t start, int64_t size) {
      return ":" + std::to_string(start) + "+" + std::to_string(size);
    };
    add("a view with other first dims", "pointwise x turned > y", "x1 1 0 2");
    add("a view of all dims turned", "pointwise back x > y", "x0 2 1 0");
    add("a view of columns", "pointwise x wide > y", "x1 0 1 2" + part(c + 1, c));
    add("views of both halves", "pointwise wide wide > y", "x0 0 1 2" + part(0, c) + "; x1 0 1 2" + part(c + 3, c));
    add("a view of rows", "pointwise x tall > y", "x1 0" + part(2, a) + " 1 2");
    add("a view of one layer", "pointwise x layers > y", "x1 -:2 0 1 2");
    add("a view of one element", "pointwise x deep > y", "x1 0 1 -:3 2");
    add("a view that repeats", "pointwise x middle > y", "x1 1");
    // Parts of a tensor that the op reads last, which keeps its other elements.
    const auto write = [&](const char* name, const char* line, std::string views, Shape whole) {
      f.add(name, {line, make_attrs({{"program", std::string("mul x0 x1; sub r0 x0")},
                                     {"shape", Shape{a, b, c}},
                                     {"views", std::move(views)},
                                     {"whole", std::move(whole)},
                                     {"continues", 1}})});
    };
    write("a part of columns", "pointwise x turned wide > wide", "x1 1 0 2; x2 0 1 2" + part(c + 1, c),
          {a, b, 2 * c + 3});
    write("a part of rows", "pointwise x x tall > tall", "x2 0" + part(2, a) + " 1 2", {a + 2, b, c});
    write("a part of a middle dim", "pointwise x x long > long", "x2 0 1" + part(1, b) + " 2", {a, b + 2, c});
  }
}

void add_reductions(std::vector<Case>& out) {
  for (auto [a, b, c] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                         {3, 5, 7},
                         {2, 3, 600},
                         {40, 33, 17},
                         {3, 170, 48},
                         {290, 2, 150}}) {
    Family f(out, {{"x y dy dx", {T, {a, b, c}, -4, 4}},
                   {"first", {T, {b, c}}},
                   {"middle", {T, {a, c}}},
                   {"last", {T, {a, b}}},
                   {"column", {T, {b}}},
                   {"kept", {T, {1, b, 1}}},
                   {"wide", {F32, {c}}},
                   {"all", {T, {}}}});
    for (const char* op : {"sum", "mean", "max"}) {
      f.add("reduce the first dim", {"reduce_dims x > first", reduction(op, {0})}, 3e-6);
      f.add("reduce the middle dim", {"reduce_dims x > middle", reduction(op, {1})}, 3e-6);
      f.add("reduce the last dim", {"reduce_dims x > last", reduction(op, {2})}, 3e-6);
      f.add("reduce two dims", {"reduce_dims x > column", reduction(op, {0, 2})}, 3e-6);
      f.add("reduce two dims, kept", {"reduce_dims x > kept", reduction(op, {0, 2}, {0, 2})}, 3e-6);
      f.add("reduce all dims", {"reduce_dims x > all", reduction(op, {0, 1, 2})}, 3e-6);
    }
    Attrs wide = reduction("sum", {0, 1});
    wide.set("wide", 1);
    f.add("reduce to f32", {"reduce_dims x > wide", wide}, 3e-6);
    for (const Attrs& attrs : {Attrs(), flag("log")}) {
      const Line softmax{"softmax x > y", attrs};
      f.add("softmax", softmax, 3e-6);
      f.add("softmax_grad", {"softmax_grad y dy > dx", attrs}, 5e-6, {softmax});
    }
    f.add("softmax, causal", {"softmax x > y", flag("causal")}, 3e-6);
    f.add("softmax in a window", {"softmax x > y", make_attrs({{"causal", 1}, {"window", 2}})}, 3e-6);
    for (int64_t dim : {0, 1, 2}) {
      f.add("cumsum", {"cumsum x > y", make_attrs({{"dim", dim}})}, 3e-6);
      f.add("cumsum from the end", {"cumsum x > y", make_attrs({{"dim", dim}, {"reverse", 1}})}, 3e-6);
    }
  }
}

void add_matmuls(std::vector<Case>& out) {
  for (auto [batch, m, k, n] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1}, {3, 5, 7, 9}, {2, 17, 33, 65}, {8, 64, 48, 64}}) {
    Family f(out, {{"a", {T, {batch, 1, m, k}}},
                   {"at", {T, {batch, 1, k, m}}},
                   {"b", {T, {batch, 1, k, n}}},
                   {"bt", {T, {batch, 1, n, k}}},
                   {"y", {T, {batch, 1, m, n}}}});
    f.add("matmul", "matmul a b > y", 3e-6);
    f.add("matmul transposed", {"matmul at b > y", flag("transpose_a")}, 3e-6);
    f.add("matmul of a transposed", {"matmul a bt > y", flag("transpose_b")}, 3e-6);
    f.add("matmul of both transposed", {"matmul at bt > y", make_attrs({{"transpose_a", 1}, {"transpose_b", 1}})},
          3e-6);
  }
}

// Heads within rows, columns as parts of fused rows, keys that heads share, and a result with its heads within rows.
void add_strided_matmuls(std::vector<Case>& out) {
  for (auto [batch, heads, m, k, n] : {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>{1, 1, 1, 1, 1},
                                       {2, 3, 5, 7, 9},
                                       {3, 2, 17, 33, 65},
                                       {2, 4, 64, 48, 64}}) {
    Family f(out, {{"a", {T, {batch, m, heads, k}}},
                   {"at", {T, {batch, k, heads, m}}},
                   {"b", {T, {batch, k, heads, n}}},
                   {"bt", {T, {batch, n, heads, k}}},
                   {"fused", {T, {batch, m, 2 * heads, k}}},
                   {"shared", {T, {batch, k, n}}},
                   {"layers", {T, {3, batch, heads, k, n}}},
                   {"plain", {T, {batch, heads, m, k}}},
                   {"y", {T, {batch, heads, m, n}}},
                   {"turned", {T, {batch, m, heads, n}}},
                   {"joined", {T, {batch, m, heads + 2, n}}}});
    const auto views = [](std::string text, const char* flag = nullptr) {
      Attrs attrs = make_attrs({{"views", std::move(text)}});
      if (flag != nullptr) attrs.set(flag, 1);
      return attrs;
    };
    const std::string a = "x0 0 2 1 3", b = "x1 0 2 1 3", y = "x2 0 2 1 3";
    const std::string half = "x0 0 2 1:" + std::to_string(heads) + "+" + std::to_string(heads) + " 3";
    f.add("matmul of heads", {"matmul a b > y", views(a + "; " + b)}, 3e-6);
    f.add("matmul of heads into rows", {"matmul a b > turned", views(a + "; " + b + "; " + y)}, 3e-6);
    f.add("matmul of transposed heads", {"matmul at b > y", views(a + "; " + b, "transpose_a")}, 3e-6);
    f.add("matmul of heads, transposed", {"matmul a bt > turned", views(a + "; " + b + "; " + y, "transpose_b")}, 3e-6);
    f.add("matmul that a view transposes", {"matmul a bt > y", views(a + "; x1 0 3 1 2")}, 3e-6);
    f.add("matmul of a part", {"matmul fused b > y", views(half + "; " + b)}, 3e-6);
    f.add("matmul of shared keys", {"matmul plain shared > y", views("x1 0 2 3")}, 3e-6);
    Attrs parts = views(a + "; " + b + "; x2 0 2 1:1+" + std::to_string(heads) + " 3");
    parts.set("whole", Shape{batch, m, heads + 2, n});
    parts.set("continues", 1);
    f.add("matmul into a part", {"matmul a b joined > joined", parts}, 3e-6);
    f.add("matmul of one layer", {"matmul plain layers > turned", views("x1 -:2 0 1 2 3; " + y)}, 3e-6);
  }
}

}  // namespace

std::vector<Case> arithmetic_cases() {
  std::vector<Case> out;
  add_functions(out);
  add_broadcasts(out);
  add_chains(out);
  add_views(out);
  add_reductions(out);
  add_matmuls(out);
  add_strided_matmuls(out);
  return out;
}

}  // namespace prun
