#!/bin/sh
# Slurm prolog: may this job start on this node? slurm.conf: Prolog=/etc/slurm/megatrace-prolog.sh
#
# A prolog that ends with another code than 0 makes Slurm drain the node and requeue the job. So everything that is not a
# definite fault with a token of the controller ends with 0: also a MegaTrace that is not there, crashes or takes too long.
controller=${MEGATRACE_CONTROLLER:-}
limit=12 # seconds; the gate itself ends within 10

command -v megatrace >/dev/null 2>&1 || exit 0
timeout --kill-after=1 "$limit" megatrace inspect --gate ${controller:+--controller "$controller"}
[ $? -eq 10 ] && exit 1
exit 0
