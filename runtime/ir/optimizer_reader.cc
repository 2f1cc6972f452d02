// A rate that is no number is a curve of pieces, or a list of rates of the first steps.
#include "ir/optimizer_reader.h"

#include <iterator>

#include "ir/ops.h"
#include "ir/plan_values.h"
#include "prun/sdk/update_program.h"

namespace prun::plan_document {

static void read(const Field& field, RatePiece& piece) {
  piece.shape = static_cast<RateShape>(field.at("shape").word({std::begin(kRateShapes), std::end(kRateShapes)}));
  field.need("end", piece.end, "from", piece.from, "to", piece.to);
}

static LearningRate read_learning_rate(const Field& optimizer) {
  LearningRate rate;
  optimizer.may("lr", rate.last);
  if (!optimizer.has("curve")) return rate;
  const Field field = optimizer.at("curve");
  field.need("text", rate.curve, "last", rate.last);
  field.may("pieces", rate.pieces, "rates", rate.values);
  int64_t end = 0;
  for (const RatePiece& piece : rate.pieces) {
    if (piece.end <= end) field.at("pieces").fail("pieces with rising ends");
    if (piece.from < 0 || piece.to < 0) field.at("pieces").fail("rates from 0");
    end = piece.end;
  }
  for (const double value : rate.values)
    if (value < 0) field.at("rates").fail("numbers from 0");
  return rate;
}

static void read(const Field& field, ParameterGroup& group) {
  field.need("match", group.match, "lr", group.lr, "decay", group.weight_decay);
  field.may("optimizer", group.optimizer);
  if (group.lr < 0 || group.weight_decay < 0) field.fail("of lr and decay from 0");
}

// Reads the program of an optimizer that the plan defines, and the names of its state.
static void read_program(const Field& field, Optimizer& optimizer) {
  std::vector<int64_t> results;
  field.need("name", optimizer.name, "results", results);
  field.may("slots", optimizer.slots);
  const std::string program = field.at("program").text();
  if (!sdk::parse_update(program, static_cast<int>(optimizer.slots.size()) + 2, results))
    field.at("program").fail("a program of functions of elements");
  optimizer.numbers.set("program", program);
  optimizer.numbers.set("results", results);
}

Optimizer read_optimizer(const Field& field) {
  Optimizer optimizer;
  std::vector<std::string> kinds;
  for (const OpDef* op : all_ops())
    if (op->optimizer != nullptr && !op->optimizer->casts && !op->optimizer->prepares) kinds.emplace_back(op->name);
  optimizer.op = find_op(kinds[field.at("kind").word(kinds)]);
  optimizer.lr = read_learning_rate(field);
  optimizer.name = optimizer.op->name;
  optimizer.slots.assign(optimizer.op->optimizer->slots.begin(), optimizer.op->optimizer->slots.end());
  if (optimizer.op->optimizer->programmed) read_program(field, optimizer);
  std::vector<double> betas;
  field.may("weight_decay", optimizer.weight_decay, "clip", optimizer.clip, ops::ema.name.data(), optimizer.ema,
            "betas", betas, "groups", optimizer.groups, "site", optimizer.site);
  if (field.has("betas") && betas.size() != 2) field.at("betas").fail("two numbers");
  for (const OptimizerNumber& number : optimizer.op->optimizer->numbers) {
    double value = number.name == "beta1" && !betas.empty()   ? betas[0]
                   : number.name == "beta2" && !betas.empty() ? betas[1]
                                                              : number.usual;
    field.may(number.name.data(), value);
    if (value != 0 || number.usual != 0) optimizer.numbers.set(std::string(number.name), value);
  }
  if (field.has("others"))
    field.at("others").each([&](const Field& other) {
      optimizer.others.push_back(read_optimizer(other));
      if (!optimizer.others.back().groups.empty() || !optimizer.others.back().others.empty()) other.fail("no groups");
    });
  // The learning rate of a group's optimizer is a factor of the plan's.
  const double peak = optimizer.lr.peak();
  for (ParameterGroup& group : optimizer.groups) {
    if (group.optimizer < 0 || group.optimizer > std::ssize(optimizer.others)) field.at("groups").fail("of optimizers");
    if (group.optimizer > 0 && peak > 0) group.lr *= optimizer.others[group.optimizer - 1].lr.last / peak;
  }
  if (optimizer.lr.last < 0 || optimizer.weight_decay < 0 || optimizer.clip < 0)
    field.fail("of lr, weight_decay and clip from 0");
  if (optimizer.ema < 0 || optimizer.ema >= 1) field.at(ops::ema.name.data()).fail("a number from 0 and below 1");
  return optimizer;
}

}  // namespace prun::plan_document
