// The predicted steps of two plans on one cluster, and what the difference consists of: causes whose differences add up
// to that of the steps.
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
  simulate::Simulation simulation;  // with its spans
  std::map<simulate::StepPart, double> parts;
};

// Something that a step takes time for, in both. `what`: "all_gather over dp", "linear, plans/zero3.lua:11".
struct StepCause {
  simulate::PartKind kind = simulate::PartKind::compute;
  std::string what;
  double first_s = 0, second_s = 0;
  double difference() const { return second_s - first_s; }
};

PredictedStep predict_step(const Job& job, const simulate::Cluster& cluster);

// The largest differences first. An op whose lines differ between the plans is one cause with both lines.
std::vector<StepCause> causes_of(const PredictedStep& first, const PredictedStep& second);

// "525.4 ms longer: exposed recv over pp +290.9 ms, ..": the largest causes.
std::string difference_text(const PredictedStep& first, const PredictedStep& second);
void print_prediction(const simulate::Cluster& cluster, const PredictedStep& first, const PredictedStep& second);
nlohmann::ordered_json prediction_json(const simulate::Cluster& cluster, const PredictedStep& first,
                                       const PredictedStep& second);

// Both plans as timelines below each other, on one axis of time. `step`: predicted, or null for unit costs. `which`:
// "first"; `name`: the plan and its arguments.
draw::Timeline timeline_of_plan(const Job& job, const PredictedStep* step, const std::string& which,
                                const std::string& name);
// With memory by role, as pages have it.
draw::Drawing two_timelines(std::vector<draw::Timeline> timelines, const Job& first, const Job& second);

}  // namespace prun
