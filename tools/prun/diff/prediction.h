// The predicted steps of two plans on one cluster, and the causes of their difference, which add up to it.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "draw/drawing.h"
#include "ir/program.h"
#include "simulate/simulate.h"

namespace prun {

struct PredictedStep {
  simulate::Simulation simulation;  // the simulation, which has kept its spans
  std::map<simulate::StepPart, double> parts;
};

// A cause of step time, with its time in both plans. `what`: "all_gather over dp", "linear, plans/zero3.lua:11".
struct StepCause {
  simulate::PartKind kind = simulate::PartKind::compute;
  std::string what;
  double first_s = 0, second_s = 0;
  double difference() const { return second_s - first_s; }
};

PredictedStep predict_step(const Job& job, const simulate::Cluster& cluster);

// Returns the causes, largest difference first. An op whose line differs between the plans is one cause with both
// lines.
std::vector<StepCause> causes_of(const PredictedStep& first, const PredictedStep& second);

// Returns "525.4 ms longer: exposed recv over pp +290.9 ms, ..": the largest causes.
std::string difference_text(const PredictedStep& first, const PredictedStep& second);
void print_prediction(const simulate::Cluster& cluster, const PredictedStep& first, const PredictedStep& second);
nlohmann::ordered_json prediction_json(const simulate::Cluster& cluster, const PredictedStep& first,
                                       const PredictedStep& second);

// Returns a plan's timeline for a picture of both plans, stacked on one time axis. `step`: the prediction; null = unit
// costs. `which`: "first" or "second"; `name`: the plan and its arguments.
draw::Timeline timeline_of_plan(const Job& job, const PredictedStep* step, const std::string& which,
                                const std::string& name);
// Stacks both timelines, with memory by role.
draw::Drawing two_timelines(std::vector<draw::Timeline> timelines, const Job& first, const Job& second);

}  // namespace prun
