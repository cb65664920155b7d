#!/usr/bin/env bash
#SBATCH --job-name=cropstar-map
#SBATCH --array=0-15
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
#SBATCH --output=cropstar-%A-%a.log
# Sixteen array tasks map all tiles of a folder with Apptainer. See README.md.
#
#   apptainer build cropstar.sif docker-daemon://cropstar:0.2.0
#   sbatch deploy/slurm-array.sh /project/season
set -euo pipefail
season=${1:?usage: sbatch slurm-array.sh FOLDER (with tiles/ and model.safetensors)}

# exec: the signal before the time limit reaches cropstar itself.
code=0
srun apptainer run --nv --containall --writable-tmpfs --no-home --net --network none \
  --env SLURM_ARRAY_TASK_ID="$SLURM_ARRAY_TASK_ID",SLURM_ARRAY_TASK_MIN="$SLURM_ARRAY_TASK_MIN" \
  --bind "$season:/work" --pwd /work "${CROPSTAR_IMAGE:-cropstar.sif}" \
  predict '/work/tiles/*.tif' --output /work/maps --model /work/model.safetensors \
  --device cuda --shard auto/16 --confidence --log-json || code=$?

# Stopped after saving, or out of disk or memory for now: once more, it goes on from its finished blocks.
case $code in
  6 | 137 | 143) scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" ;;
esac
exit "$code"
