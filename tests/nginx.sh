#!/bin/sh
# Sees to nginx, which tests of routes start for themselves.
set -eu

command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || exec sh "$(dirname "$0")/packages.sh" "nginx" nginx-light
