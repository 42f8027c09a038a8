#!/bin/sh
# Sees to the programs of MariaDB and PostgreSQL that the tests start for themselves; with the argument `pooler`, to
# PgBouncer too; with `galera`, to Galera.
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
# shellcheck disable=SC2086 # several packages
exec sh "$(dirname "$0")/packages.sh" "MariaDB and PostgreSQL" $packages
