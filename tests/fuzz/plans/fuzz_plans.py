#!/usr/bin/env python3
"""Compares random plans with one rank, see README.md.

    fuzz_plans.py JUDGE [--seconds S | --plans N] [--seed N] [--keep DIR]
    fuzz_plans.py JUDGE --case 0:17 [--trials 0]      # repeats a case: its plan and its outcome
    fuzz_plans.py JUDGE --found                       # the plans in found/, which are former findings
"""
import argparse
import collections
import pathlib
import re
import sys
import textwrap
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
    parser.add_argument("--long", action="store_true", help="two hours of plans that no run has had before")
    parser.add_argument("--case", help="SEED:NUMBER of one case")
    parser.add_argument("--found", action="store_true", help="judge the plans in found/")
    parser.add_argument("--trials", type=int, default=150, help="how often to try to make a finding smaller")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the plans of findings")
    parser.add_argument("--accepted", type=float, default=0.9, help="the least share of plans that must be accepted")
    return parser.parse_args()


def header(case):
    """Returns the first line of a kept plan, which --found reads: "-- 2 ranks, device=reference"."""
    check = "".join(f", {key}={of}" for key, of in case["check"].items())
    return f"-- {random_plans.ranks_of(case)} ranks{check}\n"


def with_notes(outcome, name, case):
    notes = f"{outcome.kind} in case {name}: {outcome.text}\n{outcome.detail}".strip()
    return header(case) + textwrap.indent(notes, "-- ") + "\n" + plan_text.plan_text(case)


def keep_plan(folder, outcome, name, case):
    folder.mkdir(parents=True, exist_ok=True)
    file_name = f"{outcome.kind}_{name}.lua".replace(" ", "_").replace(":", "_")
    (folder / file_name).write_text(with_notes(outcome, name, case))


def run_found(judge):
    failed = 0
    for path in sorted((pathlib.Path(__file__).resolve().parent / "found").glob("*.lua")):
        text = path.read_text()
        first = re.match(r"-- (\d+) ranks?((?:, \w+=\w+)*)\n", text)
        check = dict(each.split("=") for each in first[2].split(", ")[1:])
        check = {key: int(of) if of.isdigit() else of for key, of in check.items()}
        outcome = judge.judge_text(text, int(first[1]), check)
        print(f"{path.name}: {outcome.kind} {outcome.text if outcome.is_finding else ''}")
        failed += outcome.is_finding
    return 1 if failed else 0


def run_one(args, judge):
    case = random_plans.draw_case(args.case)
    outcome = judge.judge(case)
    if outcome.is_finding:
        case, outcome = shrinking.shrink(case, outcome, judge, args.trials)
    print(with_notes(outcome, args.case, case))
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
            print(with_notes(found, name, small), flush=True)
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
    if args.long:
        args.seconds, args.seed = 7200, int(time.time())
    elif args.seconds is None and args.plans is None:
        args.plans = 100
    judge = judging.Judge(args.judge)
    if args.found:
        return run_found(judge)
    return run_one(args, judge) if args.case else run_many(args, judge)


if __name__ == "__main__":
    sys.exit(main())
