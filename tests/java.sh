#!/bin/sh
# Sees to Java 17 or newer and Maven, which build and run what stands in for Clouddriver (tests/clouddriver).
set -eu

packages=
version=$(javac -version 2>/dev/null | sed -n 's/^javac \([0-9]*\).*/\1/p')
[ "${version:-0}" -ge 17 ] || packages="default-jdk-headless"
command -v mvn >/dev/null 2>&1 || packages="$packages maven"
[ -n "$packages" ] || exit 0
# shellcheck disable=SC2086 # several packages
exec sh "$(dirname "$0")/packages.sh" "Java and Maven" $packages
