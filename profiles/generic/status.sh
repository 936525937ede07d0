#!/bin/sh
# Say running, success or failed of a job id, as snakemake-executor-plugin-cluster-generic asks; a silent scheduler means running.
state=$(scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
case $state in
COMPLETED) echo success ;;
FAILED | CANCELLED | TIMEOUT | OUT_OF_MEMORY | NODE_FAIL | BOOT_FAIL | DEADLINE) echo failed ;;
*) echo running ;;
esac
