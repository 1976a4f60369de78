#!/usr/bin/env bash
# Runs one command in user-mode Linux and gives back its stdout, stderr and exit code.
#
#   uml-run.sh [--mem 1024M] [--timeout 120] [--user NAME] [--delegate] [--cg1] [--net A.B.C.0] -- COMMAND [ARGUMENT...]
#
# The guest has cgroup v2 with the memory, pids, cpu and io controllers; with --cg1, cgroup v1 with memory, pids, freezer
# and cpu. Its root is the host's, under a copy-on-write layer in memory: nothing that COMMAND writes reaches the host.
# --delegate starts COMMAND in /sys/fs/cgroup/deleg, owned by --user, which is what systemd's Delegate=yes gives.
# --net lays a cable to the guest: the host is A.B.C.1 on it, the guest A.B.C.2 (root; under `unshare -n` nobody else sees it).
# Otherwise no network; no stdin. Works as root and as any user who can read what COMMAND needs.
#
# Exit code: COMMAND's; 124 when the guest was killed or ran out of time; 125 when it did not come up.
# As a cargo runner: CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/lanes/uml-run.sh --" cargo test
set -u
here=$(cd "$(dirname "$0")" && pwd)
mem=1024M limit=120 user=root deleg=0 cg1=0 net=
usage() { echo "uml-run: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --mem) mem=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --user) user=$2; shift 2 ;;
    --delegate) deleg=1; shift ;;
    --cg1) cg1=1; shift ;;
    --net) net=$2; shift 2 ;;
    --) shift; break ;;
    *) usage "unknown option $1" ;;
  esac
done
[ $# -gt 0 ] || usage "no command"
command -v linux.uml >/dev/null || { echo "uml-run: needs the package user-mode-linux" >&2; exit 125; }

run=$(mktemp -d "${TMPDIR:-/tmp}/uml.XXXXXX")
trap 'rm -rf "$run"' EXIT
mkdir "$run/layer" "$run/out" "$run/uml"
cmd=("$@")
{ printf '%s=%q\n' user "$user" deleg "$deleg" cg1 "$cg1" net "$net" cwd "$PWD"; declare -p cmd; } >"$run/conf"
export -p >"$run/env"
cable=()
if [ -n "$net" ]; then
  tap=uml$$
  ip tuntap add dev $tap mode tap && ip addr add "${net%.*}.1/30" dev $tap && ip link set $tap up || exit 125
  trap 'ip link del $tap; rm -rf "$run"' EXIT
  cable=(vec0:transport=tap,ifname=$tap)
fi

# As root the machine gets a pid namespace of its own, so that a SIGKILL also takes the host processes that it traces.
# Otherwise SIGTERM lets it clean up by itself.
ns=(unshare --pid --fork --kill-child) signal=KILL
[ "$(id -u)" = 0 ] && "${ns[@]}" true 2>/dev/null || { ns=(); signal=TERM; }

# Descriptors 3 and 4 are our stdout and stderr: serial lines 0 and 1 of the guest. The kernel's own words go to a file.
{
  timeout -s $signal -k 5 "$limit" ${ns[@]+"${ns[@]}"} linux.uml mem="$mem" uml_dir="$run/uml" umid=guest \
    rootfstype=hostfs rootflags=/ ro init="$here/uml-init.sh" LANE_DIR="$run" ${cable[@]+"${cable[@]}"} \
    con=null con0=null,fd:1 ssl=null ssl0=null,fd:3 ssl1=null,fd:4 loglevel=4 </dev/null >"$run/console" 2>&1
  status=$?
} 3>&1 4>&2 2>/dev/null # hides bash's own "Killed"

[ -s "$run/out/rc" ] && exit "$(cat "$run/out/rc")"
case $status in
  124 | 137) echo "uml-run: the guest was killed (limit ${limit} s, or from outside)" >&2; exit 124 ;;
esac
echo "uml-run: the guest gave no exit code (linux.uml ended with $status); its console:" >&2
tail -40 "$run/console" >&2
exit 125
