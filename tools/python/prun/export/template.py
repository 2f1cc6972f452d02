"""The text of a plan around its model: arguments, mesh, data, strategies, optimizer.

A plan is written once, from its parts and a caller's choices; no part of the text is replaced later.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TEXT = """{head}
local prun = require "prun"
local nn = prun.nn

local arg = prun.args {{
  from = {weights},  -- the module's weights
{arguments}
}}

return prun.plan {{
  mesh  = prun.mesh {{ {mesh} }},
  model = {model},
  init      = prun.init.from {{ path = arg.from }},
  data      = {data},
  strategy  = {{
{strategy}
  }},
{evaluation}{frozen}  optimizer = {optimizer},
  micro     = arg.micro,
  steps     = arg.steps,
  dtype     = arg.dtype,
}}
"""
_EVALUATION = '  eval      = prun.eval {{ every = arg.eval_every, batches = "all", data = {data} }},\n'


def quoted(text: str) -> str:
    """Returns a Lua string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@dataclass(frozen=True)
class Choices:
    """The parts of a plan that do not come from the module, as Lua. The defaults are those of an exported plan.

    `mesh`: the fields of prun.mesh. `arguments`: of the plan, for `mesh`. `strategy`: an expression per strategy.
    `data`, `eval_data`: instead of the module's data, "" = those. `evaluate`: the plan evaluates each sample of the arguments `eval_file` and `eval_targets` every `eval_every` steps.
    """

    mesh: str = "pp = arg.pp, dp = prun.rest, tp = arg.tp"
    arguments: Sequence[str] = ("pp = 1", "tp = 1")
    strategy: Sequence[str] = ('prun.pipeline { axis = "pp" }', 'prun.tensor_parallel { axis = "tp" }',
                               'prun.zero3 { axis = "dp" }')
    optimizer: str = "prun.adamw { lr = arg.lr, weight_decay = arg.weight_decay }"
    evaluate: bool = False
    data: str = ""
    eval_data: str = ""


EXPORTED = Choices()


@dataclass(frozen=True)
class Template:
    """The parts of a plan that come from the module, as Lua.

    `head`: comment lines. `file`: the default of the argument `file`. `data`, `eval_data`: the data of training, which
    reads the arguments `file` and `targets`, and of an evaluation, which reads `eval_file` and `eval_targets`.
    `frozen`: the pattern of parameters that are not trained. `has_targets`: the data have a second file. `arrays`: names of the inputs, if each has a file of its own.
    """

    head: str
    model: str
    file: str
    data: str
    eval_data: str
    has_targets: bool
    dtype: str
    arrays: Sequence[str] = ()
    frozen: str = ""

    def text(self, weights: str, choices: Choices) -> str:
        """Returns the plan. `weights`: the folder that it starts from."""
        files = [f"file = {quoted(self.file)}", *['targets = "y.npy"'] * self.has_targets]
        files = [f'{name} = "{name}.npy"' for name in self.arrays] or files
        rows = [[*files, "batch = 8", "steps = 10", "micro = 1"],
                ["lr = 1e-3", "weight_decay = 0.01", *choices.arguments], [f"dtype = {quoted(self.dtype)}"]]
        if choices.evaluate:
            files = [f'eval_{name} = ""' for name in self.arrays]
            files = files or ['eval_file = ""', *['eval_targets = ""'] * self.has_targets]
            rows.insert(1, [*files, "eval_every = 10"])
        return _TEXT.format(
            head=self.head, weights=quoted(weights), model=self.model, data=choices.data or self.data, mesh=choices.mesh,
            arguments="\n".join(f"  {', '.join(row)}," for row in rows),
            strategy="\n".join(f"    {one}," for one in choices.strategy), optimizer=choices.optimizer,
            frozen=f"  frozen    = {quoted(self.frozen)},\n" if self.frozen else "",
            evaluation=_EVALUATION.format(data=choices.eval_data or self.eval_data) if choices.evaluate else "")
