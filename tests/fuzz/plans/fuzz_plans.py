#!/usr/bin/env python3
"""Random plans beside one rank: see README.md.

    fuzz_plans.py JUDGE [--seconds S | --plans N] [--seed N] [--keep DIR]
    fuzz_plans.py JUDGE --case 0:17 [--trials 0]       # one case again: its plan and its outcome
"""
import argparse
import collections
import pathlib
import sys
import time

import judging
import plan_text
import random_plans
import shrinking


def command_line():
    parser = argparse.ArgumentParser()
    parser.add_argument("judge", help="the program plan_judge")
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    parser.add_argument("--plans", type=int, help="end after so many plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", help="SEED:NUMBER of one case")
    parser.add_argument("--trials", type=int, default=150, help="how often to try to make a finding smaller")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the plans of findings")
    parser.add_argument("--accepted", type=float, default=0.9, help="the least share of plans that must be accepted")
    return parser.parse_args()


def report(outcome, name, case, command=""):
    print(f"\n{outcome.kind} in case {name}: {outcome.text}")
    if outcome.detail:
        print(f"  {outcome.detail}")
    check = " ".join(f"{key}={of}" for key, of in case["check"].items())
    print(f"  {random_plans.ranks_of(case)} ranks, {check}{command}\n")
    print(plan_text.plan_text(case), flush=True)


def keep_plan(folder, outcome, name, case):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (outcome.kind.replace(" ", "_") + "_" + name.replace(":", "_") + ".lua")
    notes = f"-- {outcome.kind}, case {name}, {random_plans.ranks_of(case)} ranks, {case['check']}\n"
    notes += "".join(f"-- {line}\n" for line in (outcome.text + "\n" + outcome.detail).strip().split("\n"))
    path.write_text(notes + plan_text.plan_text(case))


def run_one(args, judge):
    case = random_plans.draw_case(args.case)
    outcome = judge.judge(case)
    if outcome.is_finding:
        case, outcome = shrinking.shrink(case, outcome, judge, args.trials)
    report(outcome, args.case, case)
    if args.keep:
        keep_plan(args.keep, outcome, args.case, case)
    return 1 if outcome.is_finding else 0


def run_many(args, judge):
    began, count = time.monotonic(), 0
    kinds, keys = collections.Counter(), {}
    while (args.seconds is None or time.monotonic() - began < args.seconds) and (args.plans is None or count < args.plans):
        name = f"{args.seed}:{count}"
        case = random_plans.draw_case(name)
        outcome = judge.judge(case)
        count += 1
        kinds[outcome.kind] += 1
        if not outcome.is_finding:
            continue
        keys.setdefault(outcome.key, []).append(name)
        if len(keys[outcome.key]) == 1:
            small, found = shrinking.shrink(case, outcome, judge, args.trials)
            report(found, name, small)
            if args.keep:
                keep_plan(args.keep, found, name, small)
    return closing_lines(args, kinds, keys, count, time.monotonic() - began)


def closing_lines(args, kinds, keys, count, seconds):
    print(f"{count} plans in {seconds:.0f} s, seed {args.seed}:")
    for kind, many in kinds.most_common():
        print(f"  {many:6} {100 * many / count:5.1f} % {kind}")
    for key, names in sorted(keys.items(), key=lambda each: -len(each[1])):
        print(f"  {len(names):6} {key}   (cases {', '.join(names[:4])})")
    refused = sum(many for kind, many in kinds.items() if kind.startswith("refused") or kind in judging.FINDINGS)
    if count and (count - refused) / count < args.accepted:
        print(f"only {100 * (count - refused) / count:.1f} % are accepted, at least {100 * args.accepted:.0f} % should be")
        return 1
    return 1 if keys else 0


def main():
    args = command_line()
    if args.seconds is None and args.plans is None:
        args.plans = 100
    judge = judging.Judge(args.judge)
    return run_one(args, judge) if args.case else run_many(args, judge)


if __name__ == "__main__":
    sys.exit(main())
