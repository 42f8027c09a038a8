#!/bin/sh
# Sees to the programs of MariaDB and PostgreSQL that the tests start for themselves; with the argument `pooler`, to
# PgBouncer too; with `galera`, to Galera. No service is needed: what the
# packages start is stopped from starting, and nothing that runs is touched.
set -eu

has() {
    command -v "$1" >/dev/null 2>&1 && return 0
    for path in /usr/sbin/"$1" /usr/local/sbin/"$1" /usr/lib/postgresql/*/bin/"$1"; do
        [ -x "$path" ] && return 0
    done
    return 1
}

packages=
{ has mariadbd && has mariadb-install-db; } || packages="$packages mariadb-server-core mariadb-client-core"
{ has postgres && has initdb; } || packages="$packages postgresql"
if [ "${1-}" = pooler ]; then has pgbouncer || packages="$packages pgbouncer"; fi
if [ "${1-}" = galera ]; then [ -e /usr/lib/galera/libgalera_smm.so ] || packages="$packages galera-4"; fi
[ -n "$packages" ] || exit 0

say() {
    echo "The tests need MariaDB and PostgreSQL. Install:$packages ($1)" >&2
    exit 1
}

command -v apt-get >/dev/null 2>&1 || say "the Debian packages, or the same programs of another system"
root=
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || say "sudo apt-get install --no-install-recommends$packages"
    root="sudo -n"
fi
echo "Installing$packages …" >&2
# An exit code of 101 from this file tells Debian's packages to start no service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null
    $root chmod 755 "$policy"
    trap '$root rm -f "$policy"' EXIT
fi
# shellcheck disable=SC2086 # several packages
$root env DEBIAN_FRONTEND=noninteractive sh -c \
    "apt-get install -y --no-install-recommends$packages || { apt-get update && apt-get install -y --no-install-recommends$packages; }" \
    >/dev/null || say "apt-get could not"
