#!/bin/sh
# Packages the charts of a release, which pull its image and link to its runbooks:
# packaging/charts.sh IMAGE FOLDER REPOSITORY TAG
# IMAGE is the repository without a tag, in lower case as registries want it; FOLDER is where the packages go; REPOSITORY is
# OWNER/NAME at the forge, and TAG that of the release.
set -eu
image=$1 folder=$2 repository=$3 tag=$4
page=docs/runbooks.md

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for chart in kubesvc kubesvc-agent; do
  cp -R "charts/$chart" "$copy/"
  values=$copy/$chart/values.yaml
  runbooks=https://github.com/$repository/blob/$tag/$page
  sed -e "s|^  repository: kubesvc\$|  repository: $image|" \
    -e "s|^  runbooks: https://.*/$page\$|  runbooks: $runbooks|" "charts/$chart/values.yaml" > "$values"
  for line in "  repository: $image" "  runbooks: $runbooks"; do
    if [ "$(grep -cxF "$line" "$values")" != 1 ]; then
      echo "charts/$chart/values.yaml has no single line to replace by '$line'" >&2
      exit 1
    fi
  done
  helm package "$copy/$chart" --destination "$folder"
done
