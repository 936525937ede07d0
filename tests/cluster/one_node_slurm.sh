#!/usr/bin/env bash
# A Slurm of one node on this machine, for tests: one_node_slurm.sh start|stop|kill-controller|start-controller FOLDER
# Needs root and Debian's slurm-wlm and munge. The node claims more processors and memory than it has, so that jobs fit.
set -euo pipefail
act=$1 place=$(mkdir -p "$2" && cd "$2" && pwd)
export SLURM_CONF=/etc/slurm/slurm.conf # jobs drop the variable, and look there
node=$(hostname -s)

stop() {
    for daemon in slurmctld slurmd munged; do
        [ -s "$place/$daemon.pid" ] && kill "$(cat "$place/$daemon.pid")" 2>/dev/null || true
    done
    rm -f "$SLURM_CONF"
}

case $act in
start)
    [ ! -e "$SLURM_CONF" ] || { echo "$SLURM_CONF is there: this machine has a Slurm of its own" >&2; exit 1; }
    mkdir -p "$(dirname "$SLURM_CONF")"
    mkdir -p "$place/state" "$place/spool" "$place/munge"
    chmod 0755 "$place" "$place/munge"
    dd if=/dev/urandom of="$place/munge/key" bs=1024 count=1 status=none
    chmod 0400 "$place/munge/key"
    munged --force --key-file="$place/munge/key" --socket="$place/munge/socket" --pid-file="$place/munged.pid" \
        --log-file="$place/munge/log" --seed-file="$place/munge/seed"
    cat > "$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CredType=cred/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=3600
MessageTimeout=60
SlurmdTimeout=600
BatchStartTimeout=60
NodeName=$node NodeAddr=127.0.0.1 CPUs=${CPUS:-16} RealMemory=200000 State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
    slurmctld -c
    slurmd -c
    for _ in $(seq 60); do
        [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && exit 0
        scontrol update nodename="$node" state=resume 2>/dev/null || true
        sleep 1
    done
    tail -5 "$place/slurmctld.log" "$place/slurmd.log" >&2
    exit 1
    ;;
stop) stop ;;
kill-controller) kill -9 "$(cat "$place/slurmctld.pid")" ;;
start-controller) # and, as an administrator would, take the node back and release what a lost launch left held
    slurmctld
    sleep 5
    scontrol update nodename="$node" state=resume 2>/dev/null || true
    for job in $(squeue -h -t PD -o %i); do scontrol release "$job" 2>/dev/null || true; done
    ;;
*) echo "one_node_slurm.sh start|stop|kill-controller|start-controller FOLDER" >&2; exit 2 ;;
esac
