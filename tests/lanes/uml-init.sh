#!/usr/bin/env bash
# The first process of the guest that uml-run.sh starts.
#
# Stage 1 lays a copy-on-write layer over the host's root and makes it the root. Stage 2 mounts what a system has and the
# cgroup hierarchy. Stage 3 runs the command, keeps its exit code and powers off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
off() { sync; echo o >/proc/sysrq-trigger; sleep 5; }
. "$LANE_DIR/conf"

layer_root() {
  mount -t proc proc /proc
  local m=$LANE_DIR/layer
  mount -t tmpfs -o size=80%,mode=755 tmpfs "$m" || off
  mkdir -p "$m/up" "$m/work" "$m/root" "$m/k/lib"
  ln -s /usr/lib/uml/modules "$m/k/lib/modules"
  modprobe -d "$m/k" overlay || off
  mount -t overlay overlay -o "lowerdir=/,upperdir=$m/up,workdir=$m/work" "$m/root" || off
  mkdir -p "$m/root$LANE_DIR/out" "$m/root/.oldroot"
  mount -t hostfs none "$m/root$LANE_DIR/out" -o "$LANE_DIR/out" # the exit code must reach the host
  cd "$m/root" && mount --make-rprivate / && pivot_root . .oldroot || off
  mount -t proc proc /proc
  umount -l /.oldroot
  rmdir /.oldroot 2>/dev/null
}

mount_system() {
  mount -t sysfs sysfs /sys
  mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
  mkdir -p /dev/pts /dev/shm
  mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
  ln -sfn /proc/self/fd /dev/fd
  ln -sf fd/0 /dev/stdin; ln -sf fd/1 /dev/stdout; ln -sf fd/2 /dev/stderr
  mount -t tmpfs -o mode=1777,size=50% tmpfs /dev/shm
  mount -t tmpfs -o mode=755 tmpfs /run
  ip link set lo up 2>/dev/null
  if [ -n "$net" ]; then
    ip addr add "${net%.*}.2/30" dev vec0
    ip link set vec0 up
  fi
  stty -F /dev/ttyS0 raw -echo
  stty -F /dev/ttyS1 raw -echo
}

mount_cgroups() {
  local g=/sys/fs/cgroup c
  if [ "$cg1" = 1 ]; then
    mount -t tmpfs -o mode=755 tmpfs $g
    for c in memory pids freezer cpu; do mkdir $g/$c; mount -t cgroup -o $c cgroup $g/$c; done
    return
  fi
  mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 $g
  mkdir $g/init
  echo $$ >$g/init/cgroup.procs
  echo "+memory +pids +cpu +io" >$g/cgroup.subtree_control
  if [ "$deleg" = 1 ]; then
    mkdir $g/deleg
    chown "$user" $g/deleg $g/deleg/cgroup.{procs,threads,subtree_control}
  fi
}

run_command() {
  . "$LANE_DIR/env"
  cd "$cwd" 2>/dev/null || cd /
  local run=("${cmd[@]}") out err child
  [ "$user" = root ] || run=(setpriv --reuid "$user" --regid "$(id -gn "$user")" --init-groups -- "${cmd[@]}")
  [ "$deleg" = 0 ] || run=(bash -c 'echo 0 >/sys/fs/cgroup/deleg/cgroup.procs; exec "$@"' _ "${run[@]}")
  mkfifo /run/lane.out /run/lane.err # so that the command sees pipes, not terminals
  cat /run/lane.out >/dev/ttyS0 & out=$!
  cat /run/lane.err >/dev/ttyS1 & err=$!
  setsid "${run[@]}" </dev/null >/run/lane.out 2>/run/lane.err & child=$!
  wait $child
  echo $? >"$LANE_DIR/out/rc"
  for _ in 1 2 3 4 5 6 7 8 9 10; do # a left-over process may hold the pipes
    kill -0 $out 2>/dev/null || kill -0 $err 2>/dev/null || break
    sleep .1
  done
  stty -F /dev/ttyS0 -a >/dev/null # waits until the lines are drained
  stty -F /dev/ttyS1 -a >/dev/null
  off
}

case ${LANE_STAGE:-1} in
  1) layer_root; LANE_STAGE=2 exec chroot . "$0" ;; # no jail: / is the new root already
  2) mount_system; mount_cgroups; LANE_STAGE=3 exec "$0" ;;
  3) run_command ;;
esac
