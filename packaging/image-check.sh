#!/bin/sh
# Builds the image, and starts each of its programs as a cluster does: packaging/image-check.sh [PLATFORM]
# Read-only, without capabilities, with no network and the user of the image. PLATFORM is that of this machine by default.
# It needs Docker with BuildKit.
set -eu
image=kubesvc:image-check platform=${1:-}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

if ! command -v docker > /dev/null; then
  echo "image-check needs Docker 23.0 or newer, which builds and runs the image: https://docs.docker.com/engine/install/" >&2
  exit 1
fi
if ! docker info > /dev/null 2>&1; then
  echo "image-check needs a running Docker daemon that you may use: start it, or set DOCKER_HOST; 'docker info' says what is wrong" >&2
  exit 1
fi

# In the positional parameters: POSIX shells have no other list.
set --
if [ -n "$platform" ]; then
  set -- --platform "$platform"
fi
docker build "$@" --tag "$image" .
trap 'docker image rm "$image" > /dev/null' EXIT

confined() {
  docker run --rm --read-only --cap-drop ALL --security-opt no-new-privileges --network none "$image" "$@"
}

failed=0
complain() {
  echo "image-check: $1" >&2
  failed=1
}

for program in kubesvc-operator kubesvc-agent kubectl-kubesvc; do
  said=$(confined "$program" --version) || complain "$program --version failed in the image"
  case $said in
    *"$version"*) echo "$said" ;;
    *) complain "$program --version says '$said', and Cargo.toml $version" ;;
  esac
done
# Settings without a file, and what a container does without a command: it reads its settings, asks for a cluster, and finds none.
confined kubesvc-operator --print-config > /dev/null || complain "kubesvc-operator --print-config failed in the image"
if said=$(confined 2>&1); then
  complain "the image's own command ended without an error, and there was no cluster"
else
  case $said in
    *panicked* | *"error while loading shared libraries"* | *"exec format error"*) complain "the image's own command: $said" ;;
  esac
fi
user=$(docker image inspect --format '{{.Config.User}}' "$image")
[ "$user" = 65532:65532 ] || complain "the image runs as '$user'"

# Files that ship with the programs, and whether any file has a time of its own.
container=$(docker create "$image")
trap 'docker rm "$container" > /dev/null; docker image rm "$image" > /dev/null' EXIT
for file in LICENSE THIRD-PARTY-NOTICES; do
  listed=$(docker cp "$container:/usr/share/doc/kubesvc/$file" - | TZ=UTC tar -tv) || complain "$file is not in the image"
  case $listed in
    *1970*) ;;
    *) complain "$file has the time of its build: $listed" ;;
  esac
done
[ "$failed" = 0 ] || exit 1
echo "image-check: $image is as it should be"
