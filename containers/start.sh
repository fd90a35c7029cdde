#!/usr/bin/env bash
# Serve the page from a persistent folder, and train a recipe beside it; for containers and rented cards.
#
#   WORKSPACE        the persistent folder (/workspace); runs, models and caches lie in it
#   XDG_STATE_HOME   the folder of the page's queue and token (.state in WORKSPACE; in the image, /workspace/.state)
#   PORT             of the page (8384)
#   REELWORKS_TOKEN  of the page; without it one is made, and kept in the folder
#   RECIPE           a recipe in the folder to train; after an interruption, the next start resumes it
set -eu

mkdir -p "${WORKSPACE:=/workspace}"
cd "$WORKSPACE"
WORKSPACE=$PWD # absolute, as are the paths that are made of it
PORT=${PORT:-8384}
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$WORKSPACE/.cache}
export XDG_STATE_HOME=${XDG_STATE_HOME:-$WORKSPACE/.state}
export HF_HOME=${HF_HOME:-$XDG_CACHE_HOME/huggingface}
mkdir -p "$XDG_STATE_HOME"

if [ -z "${REELWORKS_TOKEN:-}" ]; then
	kept=$XDG_STATE_HOME/token
	[ -s "$kept" ] || (umask 077 && python3 -c 'import secrets; print(secrets.token_urlsafe(24))' >"$kept")
	REELWORKS_TOKEN=$(cat "$kept")
fi
export REELWORKS_TOKEN

reelworks doctor || true # what is wrong is said, and hinders nobody from looking at the page

# Providers put the page under a name of their own.
if [ -n "${RUNPOD_POD_ID:-}" ]; then
	echo "from outside: https://$RUNPOD_POD_ID-$PORT.proxy.runpod.net/?token=$REELWORKS_TOKEN"
fi
outside=VAST_TCP_PORT_$PORT
if [ -n "${PUBLIC_IPADDR:-}" ] && [ -n "${!outside:-}" ]; then
	echo "from outside: http://$PUBLIC_IPADDR:${!outside}/?token=$REELWORKS_TOKEN"
fi

reelworks ui . --host 0.0.0.0 --port "$PORT" &
page=$!
train=
if [ -n "${RECIPE:-}" ]; then
	reelworks train "$RECIPE" &
	train=$!
fi

# What stops the container asks trainings to save first, also those that were started on the page.
end() {
	trap '' TERM INT
	kill "$page" ${train:+"$train"} 2>/dev/null || true
	for _ in {1..30}; do kill -0 "$page" 2>/dev/null || break; sleep 0.1; done
	kill -KILL "$page" 2>/dev/null || true # a request that it still answers may take long
	wait "$page" || true                   # it would start what waits for the trainings that now end
	reelworks ui . --end-jobs || true
	wait
	exit "$code"
}
code=0
trap end TERM INT
wait "$page" || code=$?
# A page that could not start (2) ends no training of RECIPE. One that failed later could not be reached: all is saved.
if [ "$code" = 2 ] && [ -n "$train" ]; then
	wait "$train" || true
	train=
fi
end
