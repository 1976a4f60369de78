#!/usr/bin/env bash
# The machine dies: Postgres stays up, a supervisor runs in a guest of user-mode Linux, and the whole guest is SIGKILLed in the
# middle of a job. A supervisor outside must record the loss after the lease, not before, and run the job again. (root)
#
#   vm-kill.sh FOLDER      FOLDER: where `jobvisor-under-test` is (target/debug)
#
# Exit code 0 if it is so. Everything happens in a network namespace and a temporary folder of its own.
set -u
if [ -z "${VM_KILL_INSIDE:-}" ]; then VM_KILL_INSIDE=1 exec unshare -n "$0" "$@"; fi
here=$(cd "$(dirname "$0")" && pwd)
jobvisor=$(realpath "${1:?where the programs are}")/jobvisor-under-test
bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1)
d=$(mktemp -d "${TMPDIR:-/tmp}/vm-kill.XXXXXX")
as_postgres() { (cd / && setpriv --reuid postgres --regid postgres --init-groups env LC_ALL=C "$@"); }
trap 'kill -KILL ${outside:-} 2>/dev/null; as_postgres "$bin/pg_ctl" -D "$d/data" -m immediate stop >/dev/null 2>&1; rm -rf "$d"' EXIT
fail() { echo "FAILED: $1"; tail -n 20 "$d"/*.log; exit 1; }

chmod 755 "$d"
chown postgres: "$d"
ip link set lo up
as_postgres "$bin/initdb" -D "$d/data" -U postgres -A trust -E UTF8 --no-sync >/dev/null || fail "initdb"
echo "host all all 10.77.0.0/30 trust" >>"$d/data/pg_hba.conf"
as_postgres "$bin/pg_ctl" -D "$d/data" -w -l "$d/server.log" \
  -o "-k $d -p 5599 -c listen_addresses=* -c fsync=off -c shared_buffers=32MB" start >/dev/null || fail "the server does not start"
sql() { psql -h "$d" -p 5599 -U postgres -qAtX -c "$1"; }
# until WHAT SQL ANSWER TENTHS
until_answer() {
  for _ in $(seq "$4"); do [ "$(sql "$2" 2>/dev/null)" = "$3" ] && return; sleep .1; done
  fail "$1: $(sql "$2")"
}
config() {
  printf '%s\n' '[database]' "url = \"$2\"" '[supervisor]' "name = \"$1\"" "state_dir = \"$d/state-$1\"" 'lease = "6s"' '[kind.work]' \
    'command = ["sh", "-c", "[ $JOBVISOR_ATTEMPT -gt 1 ] || sleep 100"]' 'memory = "16MiB"' \
    'backoff = { first = "100ms", factor = 1.0, max = "100ms", jitter = 0.0 }' >"$d/$1.toml"
}
config guest "postgres://postgres@10.77.0.1:5599/postgres"
config outside "postgres://postgres@localhost:5599/postgres?host=$d"

"$jobvisor" --config "$d/outside.toml" enqueue work >/dev/null 2>"$d/enqueue.log" || fail "enqueue"
"$here/uml-run.sh" --net 10.77.0.0 --timeout 120 -- "$jobvisor" --config "$d/guest.toml" run >"$d/guest.log" 2>&1 &
guest=$!
until_answer "the guest takes the job" "SELECT state FROM jobvisor.jobs" running 600
"$jobvisor" --config "$d/outside.toml" run >"$d/outside.log" 2>&1 &
outside=$!
until_answer "the other one stands" "SELECT count(*) FROM jobvisor.supervisors" 2 100
until_answer "the guest renews" "SELECT beat > 3 FROM jobvisor.supervisors WHERE name = 'guest'" t 300

kids() { for pid in $(ps -o pid= --ppid "$1"); do echo "$pid"; kids "$pid"; done; }
for pid in $(kids $guest); do
  [ "$(cat /proc/"$pid"/comm 2>/dev/null)" = timeout ] || kill -KILL "$pid" 2>/dev/null
done
start=$(date +%s%N)
until_answer "the job is run again" "SELECT state FROM jobvisor.jobs" succeeded 300
ms=$((($(date +%s%N) - start) / 1000000))
wait $guest
outcomes=$(sql "SELECT string_agg(outcome || ' ' || supervisor, ', ' ORDER BY attempt) FROM jobvisor.attempts")
[ "$outcomes" = "supervisor_lost guest, succeeded outside" ] || fail "$outcomes"
[ "$(sql "SELECT bool_and(lost_at >= expires_at) FROM jobvisor.supervisors WHERE name = 'guest'")" = t ] || fail "declared lost too early"
[ $ms -ge 4500 ] || fail "rescued after $ms ms, within a lease of 6 s"
echo "the guest died; its job was run again after $ms ms, with a lease of 6 s: $outcomes"
