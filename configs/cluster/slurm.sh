#!/usr/bin/env bash
# A sweep on Slurm: Ray on every node of the job, one driver on the first, everything gone when it ends.
#
#   MODELS="a.onnx b.onnx" MACHINE=edge OUT=$HOME/sweeps/today sbatch --nodes 4 configs/cluster/slurm.sh
#
# MODELS, MACHINE, OUT: as in `tilefarm sweep`; paths that all nodes see.  OPTIONS: more options for it, e.g. "--seeds 3 --candidates 512".
# VENV: the environment that holds tilefarm, on all nodes.  The job can be submitted again: the sweep goes on where it stopped.
#SBATCH --job-name=tilefarm
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --signal=B:INT@120
set -euo pipefail

: "${MODELS:?files of the models}" "${MACHINE:?a preset or a YAML file}" "${OUT:?folder of the sweep, on a shared file system}"
[ -z "${VENV:-}" ] || . "$VENV/bin/activate"

# Only who can read this file can talk to the cluster; it lies in the shared home, readable by its owner alone
umask 077
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
ray get-auth-token --generate >/dev/null

nodes=${SLURM_JOB_NUM_NODES:?runs inside a Slurm job}
hosts=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")
head=${hosts%%$'\n'*} # not through `head -n 1`: it closes the pipe, and with pipefail a slower scontrol then ends the job
port=$((20000 + SLURM_JOB_ID % 20000)) # two jobs on one node do not meet
resume=()
[ ! -e "$OUT/run.json" ] || resume=(--resume)

read -ra models <<<"$MODELS"
read -ra options <<<"${OPTIONS:-}"
srun --kill-on-bad-exit=1 ray symmetric-run --address "$head:$port" --min-nodes "$nodes" --num-cpus "${SLURM_CPUS_PER_TASK:-1}" -- \
    tilefarm sweep "${models[@]}" --machine "$MACHINE" --out "$OUT" --address "$head:$port" "${resume[@]}" "${options[@]}"
