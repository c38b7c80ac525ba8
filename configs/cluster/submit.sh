#!/usr/bin/env bash
# A sweep on a Ray cluster that stands: the driver runs on the cluster as a Ray job, so that this computer may go away.
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 configs/cluster/submit.sh OUT MODEL... --machine M [options of tilefarm sweep]
#
# OUT, MODEL: paths that the cluster's nodes see.  The cluster needs `ray[default]` (job submission) and tilefarm installed.  A token goes along where
# RAY_AUTH_MODE=token is set.  Submitted again, the sweep goes on where it stopped.
set -euo pipefail

[ $# -ge 2 ] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
out=$1
shift
: "${RAY_API_SERVER_ADDRESS:?address of the cluster\'s dashboard, http://host:8265}"

command=$(printf '%q ' tilefarm sweep "$@" --out "$out" --address auto)
resume=$(printf 'test -e %q && echo --resume' "$out/run.json")
id="tilefarm-$(printf '%s' "$out" | cksum | cut -d' ' -f1)-$(date +%s)"
exec ray job submit --submission-id "$id" --entrypoint-num-cpus 1 --no-wait \
    --runtime-env-json "{\"env_vars\": {\"RAY_AUTH_MODE\": \"${RAY_AUTH_MODE:-disabled}\"}}" -- bash -c "$command \$($resume)"
