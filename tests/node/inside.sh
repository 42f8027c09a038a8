#!/bin/sh
# Runs a command where a node can live without a trace: with network, mounts and processes of its own. It has a folder
# (KUBESVC_NODE_FOLDER), a control group (KUBESVC_NODE_CGROUP) and an address that this machine reaches
# (KUBESVC_NODE_ADDRESS). However the command ends, nothing of it is left, killed runs included: the next one sweeps.
# Inside of itself it makes a place for a second node, which the first one reaches.
# With the argument `check` alone it only sees to what is needed; with `can` it only says whether all of it is there.
set -eu

fail() {
    echo "tests/node/inside.sh: $*" >&2
    exit 1
}

# The packages of programs that are missing.
missing() {
    for pair in containerd:containerd ctr:containerd runc:runc iptables:iptables conntrack:conntrack ip:iproute2 \
        unshare:util-linux nsenter:util-linux strip:binutils; do
        command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done
    [ -x /usr/lib/cni/bridge ] || echo containernetworking-plugins
}

# Sees to what is needed, and fails with what this machine cannot have.
check() {
    system
    packages=$(missing | sort -u | tr '\n' ' ')
    if [ -n "$packages" ]; then
        command -v apt-get >/dev/null || fail "these Debian packages are missing, or the same of another system: $packages"
        echo "Installing $packages…" >&2
        policy=/usr/sbin/policy-rc.d
        # An exit code of 101 from this file tells Debian's packages to start no service.
        if [ ! -e "$policy" ]; then
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 755 "$policy"
            trap 'rm -f "$policy"' EXIT
        fi
        install="apt-get install -y --no-install-recommends $packages"
        DEBIAN_FRONTEND=noninteractive sh -c "$install || { apt-get update && $install; }" >/dev/null ||
            fail "apt-get could not install $packages"
        [ -z "$(missing)" ] || fail "still missing after apt-get: $(missing | tr '\n' ' ')"
    fi
    kernel
}

# Fails unless a node can live here with what has been installed and built already.
can() {
    system
    packages=$(missing | sort -u | tr '\n' ' ')
    [ -z "$packages" ] || fail "not installed: $packages"
    kernel
    ls "${XDG_CACHE_HOME:-$HOME/.cache}"/kubesvc/node-programs/*/kubelet >/dev/null 2>&1 || fail "the programs of a node are not built"
}

system() {
    [ "$(uname -s)" = Linux ] || fail "pods need Linux"
    [ "$(id -u)" = 0 ] || fail "a node needs root: run the same make command as root"
    PATH=$PATH:/usr/sbin:/sbin
}

kernel() {
    unshare --net --mount true 2>/dev/null || fail "this machine does not allow namespaces to root (a container without privileges?)"
    grep -qw overlay /proc/filesystems || fail "the kernel has no overlay file system"
    [ -e /dev/kmsg ] || fail "there is no /dev/kmsg, which the kubelet reads"
    [ -d /sys/fs/cgroup/memory ] || grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null ||
        fail "there is no control group for memory below /sys/fs/cgroup"
}

# Folders of hierarchies of control groups: one in version 2, one for each controller in version 1.
hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo /sys/fs/cgroup
    else
        for folder in /sys/fs/cgroup/*/; do
            [ ! -e "$folder/cgroup.procs" ] || echo "${folder%/}"
        done
    fi
}

# Removes what a run has left, and what was left inside of it. Its processes have ended.
sweep() {
    for folder in "/tmp/$1"-*; do
        [ ! -d "$folder" ] || sweep_one "${folder#/tmp/}"
    done
    ip link delete "$(link_of "$1")" 2>/dev/null || true
    sweep_one "$@"
}

sweep_one() {
    for hierarchy in $(hierarchies); do
        # A group of processes that have just ended is busy for a moment.
        tries=0
        while [ -d "$hierarchy/$1" ] && [ "$tries" -lt 50 ]; do
            find "$hierarchy/$1" -depth -type d -exec rmdir {} \; 2>/dev/null || sleep 0.1
            tries=$((tries + 1))
        done
    done
    if [ -n "${KUBESVC_TEST_KEEP:-}" ] && [ "${2:-}" = own ]; then
        echo "kept until the next run: /tmp/$1" >&2
    else
        rm -rf "/tmp/$1"
    fi
}

# kubesvc-node-123, or kubesvc-node-123-45 inside of that: the names of links are short.
link_of() {
    echo "ksv${1##*-}"
}

# First stage: on this machine, or where a node lives already, whose processes see no others.
outside() {
    if [ -n "${KUBESVC_NODE_CGROUP:-}" ]; then
        name=$KUBESVC_NODE_CGROUP-$$
        network=172.30
    else
        for folder in /tmp/kubesvc-node-*; do
            run=${folder#/tmp/kubesvc-node-}
            [ ! -d "$folder" ] || grep -qs inside.sh "/proc/${run%%-*}/cmdline" || sweep "kubesvc-node-${run%%-*}"
        done
        name=kubesvc-node-$$
        network=172.31
    fi
    # A subnet of two addresses for each run; several can run side by side.
    subnet=$network.$(($$ / 64 % 256)).$(($$ % 64 * 4))
    trap 'sweep "$name" own' EXIT
    # The command ends by itself, then this does.
    trap : INT TERM HUP
    mkdir -p "/tmp/$name/tmp"
    # Databases run as another user.
    chmod 755 "/tmp/$name"
    chmod 1777 "/tmp/$name/tmp"
    for hierarchy in $(hierarchies); do
        [ "$hierarchy" != /sys/fs/cgroup ] || echo "+cpu +cpuset +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
        mkdir "$hierarchy/$name"
    done
    export KUBESVC_NODE_FOLDER="/tmp/$name" KUBESVC_NODE_CGROUP="$name" KUBESVC_NODE_ADDRESS="${subnet%.*}.$((${subnet##*.} + 2))"
    export KUBESVC_NODE_GATEWAY="${subnet%.*}.$((${subnet##*.} + 1))"
    export TMPDIR="/tmp/$name/tmp"
    code=0
    # If this shell is killed, so is everything.
    setpriv --pdeathsig KILL unshare --net --mount --uts --ipc sh "$0" --network $$ "$@" || code=$?
    exit "$code"
}

# Second stage: with network and mounts of its own, and the machine's processes.
network() {
    machine=$1
    shift
    link=$(link_of "$KUBESVC_NODE_CGROUP")
    nsenter --net="/proc/$machine/ns/net" ip link add "$link" type veth peer name uplink netns $$
    nsenter --net="/proc/$machine/ns/net" ip address add "$KUBESVC_NODE_GATEWAY/30" dev "$link"
    nsenter --net="/proc/$machine/ns/net" ip link set "$link" up
    ip link set lo up
    ip address add "$KUBESVC_NODE_ADDRESS/30" dev uplink
    ip link set uplink up
    ip route add default via "$KUBESVC_NODE_GATEWAY"
    sysctl -q -w net.ipv4.ip_forward=1
    hostname node
    # Folders that programs insist on.
    mkdir "$KUBESVC_NODE_FOLDER/var" "$KUBESVC_NODE_FOLDER/work"
    below=/var
    if grep -q '^kubesvc-node /var ' /proc/mounts; then
        # The kernel stacks no more than two of them, and this machine's root may be one.
        below=$KUBESVC_NODE_FOLDER/empty
        mkdir -p "$below/lib" "$below/log" "$below/tmp"
        ln -s /run "$below/run"
    fi
    mount -t overlay -o "lowerdir=$below,upperdir=$KUBESVC_NODE_FOLDER/var,workdir=$KUBESVC_NODE_FOLDER/work" kubesvc-node /var
    mount -t tmpfs kubesvc-node /run
    exec unshare --pid --fork --kill-child=KILL --mount-proc sh "$0" --first "$@"
}

# Third stage: the first of its own processes, which looks after those that nobody waits for.
first() {
    # The kubelet would change these settings of the machine.
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        file=$KUBESVC_NODE_FOLDER/$(basename "${setting%=*}")
        echo "${setting#*=}" >"$file"
        mount --bind "$file" "/proc/sys/${setting%=*}"
    done
    trap : INT TERM HUP
    code=0
    "$@" || code=$?
    exit "$code"
}

case ${1:-} in
    "") fail "which command?" ;;
    check) check ;;
    can) can ;;
    --network) shift; network "$@" ;;
    --first) shift; first "$@" ;;
    *) check; outside "$@" ;;
esac
