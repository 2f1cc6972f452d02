"""Trains a plan and logs each step to Weights & Biases: wandb_log.py PLAN NPROC. Needs `pip install wandb`."""
import sys

import prun
import wandb

with wandb.init(project="prun", config={"plan": sys.argv[1]}) as run:
    def log(row):
        run.log({name: value for name, value in row.items() if isinstance(value, int | float)}, step=row["step"])

    prun.run(sys.argv[1], nproc=int(sys.argv[2]), on_step=log)
