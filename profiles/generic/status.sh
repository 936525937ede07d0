#!/bin/sh
# Say running, success or failed of a job id, as snakemake-executor-plugin-cluster-generic asks. A silent scheduler means
# running; a job that it has forgotten, and accounting does not know, failed: it is queued again and goes on.
said=$(scontrol show job "$1" 2>&1)
state=$(printf '%s\n' "$said" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
case $state$said in
*"Invalid job id"*)
    state=$(sacct -nX -j "$1" -o State 2>/dev/null | awk 'NR == 1 { print $1 }')
    state=${state:-FORGOTTEN}
    ;;
esac
case $state in
COMPLETED) echo success ;;
FAILED | CANCELLED* | TIMEOUT | OUT_OF_ME* | NODE_FAIL | BOOT_FAIL | DEADLINE | FORGOTTEN) echo failed ;;
*) echo running ;;
esac
