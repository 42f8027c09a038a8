#!/bin/sh
# Installs Debian packages for the tests, or says how: sh tests/packages.sh WHAT_NEEDED PACKAGE…
# No service is needed: what the packages start is stopped from starting, and nothing that runs is touched.
set -eu
what=$1
shift

say() {
    echo "The tests need $what. Install: $packages ($1)" >&2
    exit 1
}

packages=$*
command -v apt-get >/dev/null 2>&1 || say "the Debian packages, or the same programs of another system"
root=
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || say "sudo apt-get install --no-install-recommends $packages"
    root="sudo -n"
fi
echo "Installing $packages …" >&2
# An exit code of 101 from this file tells Debian's packages to start no service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null
    $root chmod 755 "$policy"
    trap '$root rm -f "$policy"' EXIT
fi
$root env DEBIAN_FRONTEND=noninteractive sh -c \
    "apt-get install -y --no-install-recommends $packages || { apt-get update && apt-get install -y --no-install-recommends $packages; }" \
    >/dev/null || say "apt-get could not"
