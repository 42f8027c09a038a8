#!/bin/sh
# Packages the charts of a release, which pull the image of that release: packaging/charts.sh IMAGE FOLDER
# IMAGE is the repository without a tag, in lower case as registries want it; FOLDER is where the packages go.
set -eu
image=$1 folder=$2

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for chart in kubesvc kubesvc-agent; do
  cp -R "charts/$chart" "$copy/"
  values=$copy/$chart/values.yaml
  sed "s|^  repository: kubesvc\$|  repository: $image|" "charts/$chart/values.yaml" > "$values"
  if [ "$(grep -c "^  repository: $image\$" "$values")" != 1 ]; then
    echo "charts/$chart/values.yaml has no single line '  repository: kubesvc' to replace" >&2
    exit 1
  fi
  helm package "$copy/$chart" --destination "$folder"
done
