#!/bin/sh
# Prints the manifest of the kubectl plugin for krew: packaging/krew.sh VERSION REPOSITORY FOLDER
# VERSION is without a v, REPOSITORY is OWNER/NAME at the forge, and FOLDER has the archives of this version.
set -eu
version=$1 repository=$2 folder=$3

cat <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: kubesvc
spec:
  version: v$version
  homepage: https://github.com/$repository
  shortDescription: Show and control Spinnaker accounts of kubesvc
  description: |
    Lists and explains the accounts and agents that kubesvc manages for Spinnaker, waits for them, approves agents,
    makes credentials for target clusters, and says what hangs before kubesvc is removed.
  caveats: |
    The definitions of kubesvc have to be installed in the cluster; see the homepage.
  platforms:
YAML
for system in linux darwin; do
  for processor in amd64 arm64; do
    archive=kubectl-kubesvc-$version-$system-$processor.tar.gz
    digest=$(sha256sum "$folder/$archive" | cut -d ' ' -f 1)
    cat <<YAML
    - selector:
        matchLabels: {os: $system, arch: $processor}
      uri: https://github.com/$repository/releases/download/v$version/$archive
      sha256: $digest
      bin: kubectl-kubesvc
      files:
        - {from: kubectl-kubesvc, to: .}
        - {from: LICENSE, to: .}
        - {from: THIRD-PARTY-NOTICES, to: .}
YAML
  done
done
