#!/bin/bash
#SBATCH --job-name=prun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
# One rank per task. Two minutes before the time limit, and on preemption, Slurm sends SIGTERM: prun writes a checkpoint
# and ends with 75, and the job is requeued and resumes.
#
#     PRUN_SECRET=$(openssl rand -hex 32) sbatch tools/clusters/slurm.sh plans/zero3.lua --set steps=10000
export PRUN_SECRET=${PRUN_SECRET:-$(openssl rand -hex 32)}
srun ${SRUN_OPTIONS:-} "${PRUN:-prun}" "$@" --checkpoint "${CHECKPOINT:-checkpoints}" --resume auto
code=$?
[ $code -ne 75 ] || scontrol requeue "$SLURM_JOB_ID"
exit $code
