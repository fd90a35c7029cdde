#!/usr/bin/env bash
# Train on several machines with torchrun: run this on each of them, with the same HEAD.
#
#   HEAD=node-0.example:29400 ./torchrun.sh recipe.toml
#
# NNODES may be a range such as 1:4. Training then goes on when machines are lost or join, from the last checkpoint.
# The machine of HEAD must stay, and train.micro_batches_per_step of the recipe must be a multiple of the GPUs of all
# machines: a step of a run that began on one has no work for others.
set -euo pipefail

# Without it, machines that join later are not told where rank 0 is (torch 2.13).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# Signals that training saves at, and that torchrun does not pass on by itself: SIGUSR1, SIGUSR2 and SIGXCPU would end it, and
# all steps since the last save would be lost. As its option --signals-to-handle.
export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2,SIGXCPU

# Seconds from such a signal to a kill, for two steps and a save. Without it, and in older versions of torch, they are 30.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-280}"

exec torchrun \
    --nnodes "${NNODES:-1:4}" \
    --nproc-per-node "${GPUS:-gpu}" \
    --rdzv-backend c10d \
    --rdzv-endpoint "${HEAD:?set it to HOST:PORT of one of the machines}" \
    --rdzv-id "${RUN_ID:-reelworks}" \
    --rdzv-conf "last_call_timeout=10" \
    --max-restarts "${MAX_RESTARTS:-100}" \
    -m reelworks train "$@"
