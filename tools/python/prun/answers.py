"""prun check, sim and tune as values. None of them starts a rank; each returns the command's JSON object."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .command import PathOrText, answer_of, option_words, plan_file


def _ask(command: str, plan: PathOrText, **options: Any) -> dict[str, Any]:
    with plan_file(plan) as path:
        return answer_of([command, path, *option_words(options)])


def check(plan: PathOrText, *, nproc: int = 1, set: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Verifies a plan for `nproc` ranks and proves a reduced version of it equal to one rank.

    `plan`: a path, or text of several lines. `set`: arguments of the plan. `options`: those of `prun check`.
    Returns a dict: "ranks", "parameters" (numbers of the model), "proven", "proof", "classes" with "arena_bytes" and
    "wire_bytes_per_step" per class of ranks, "class_of_rank".
    Raises PlanError with file and line for a wrong plan, CheckFailed for a failed proof (`prove=True`), UsageError.
    """
    return _ask("check", plan, nproc=nproc, set=set, **options)


def sim(plan: PathOrText, *, cluster: PathOrText | None = None, nproc: int = 1, set: Mapping[str, Any] | None = None,
        **options: Any) -> dict[str, Any]:
    """Predicts a step of a plan on a cluster.

    `cluster`: a cluster file or the name of one of prun's; None = this machine, if it is calibrated. `sweep`: a dict of
    arguments and the values to try. `options`: those of `prun sim`.
    Returns a dict: "step_s" in seconds, "mfu" and "bubble" from 0 to 1, "exposed_comm_s" in seconds, "peak_bytes" per
    class of ranks, "fits", "bytes" per network and step.
    Raises PlanError, and UsageError for a faulty cluster file.
    """
    return _ask("sim", plan, cluster=cluster, nproc=nproc, set=set, **options)


def tune(plan: PathOrText, *, cluster: PathOrText | None = None, nproc: int = 1, set: Mapping[str, Any] | None = None,
         search: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Finds the fastest arguments of a plan on a cluster.

    `search`: arguments and the values to try; None = those that the plan names. `options`: those of `prun tune`.
    Returns a dict: "combinations", "estimated", and "best", a list of dicts with "settings" (text per argument, which
    `set` of run takes), "step_s" in seconds, "mfu", "peak_bytes", "why"; the fastest first.
    Raises PlanError, and UsageError for a faulty cluster file.
    """
    return _ask("tune", plan, cluster=cluster, nproc=nproc, set=set, search=search, **options)
