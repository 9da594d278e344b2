#!/bin/sh
# Reads the call logs of a job on many nodes at once:   sbatch --array=0-15 megatrace-reduce.sh LOGS PARTIALS
# then, anywhere that sees PARTIALS:                     megatrace diagnose PARTIALS
#
# Every task reads its share (SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT) and writes one file of PARTIALS, under its
# name only once it is whole: a task that was killed or requeued is simply run again.
#SBATCH --job-name=megatrace-reduce
#SBATCH --ntasks=1
#SBATCH --requeue
set -eu
logs=${1:?usage: sbatch --array=0-15 megatrace-reduce.sh LOGS PARTIALS}
partials=${2:?usage: sbatch --array=0-15 megatrace-reduce.sh LOGS PARTIALS}
exec "${MEGATRACE:-megatrace}" reduce "$logs" --out "$partials"
