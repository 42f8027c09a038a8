{{/* The name of all objects. It follows the alias that an umbrella chart gives this one, which is the chart's name then. */}}
{{- define "kubesvc.name" -}}
{{- $own := eq .Chart.Name "kubesvc" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name (.Chart.Name | lower | replace "_" "-")) (and $own (contains .Chart.Name .Release.Name))) -}}
{{- if and (not $own) (gt (len $name) 50) -}}
{{- $name = printf "%s-%s" ($name | trunc 41 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- printf "%s-operator" ($name | trunc 50 | trimSuffix "-") -}}
{{- end -}}

{{/* The instance: the release, or the name where the chart has an alias. */}}
{{- define "kubesvc.instance" -}}
{{ ternary .Release.Name (include "kubesvc.name" .) (eq .Chart.Name "kubesvc") }}
{{- end -}}

{{- define "kubesvc.selector" -}}
app.kubernetes.io/name: kubesvc-operator
app.kubernetes.io/instance: {{ include "kubesvc.instance" . }}
{{- end -}}

{{- define "kubesvc.labels" -}}
{{ include "kubesvc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kubesvc.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The pod's security context, without keys that are set to null. */}}
{{- define "kubesvc.podSecurityContext" -}}
{{- $context := dict -}}
{{- range $key, $value := .Values.podSecurityContext -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $context $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "kubesvc.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "kubesvc.name" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* Whether the database is one that several replicas can share. */}}
{{- define "kubesvc.shared" -}}
{{- if .Values.database.existingSecret -}}true{{- end -}}
{{- end -}}

{{/* How the hub's port is spoken to: over TLS, or as HTTP/2 in plain text. */}}
{{- define "kubesvc.hubProtocol" -}}
{{- $flat := include "kubesvc.flat" . | fromJson -}}
{{- ternary "https" "kubernetes.io/h2c" (eq (toString (get $flat "kubesvc.grpc.server.security.enabled")) "true") -}}
{{- end -}}

{{/* How the port of REST is spoken to. */}}
{{- define "kubesvc.restProtocol" -}}
{{- $flat := include "kubesvc.flat" . | fromJson -}}
{{- ternary "https" "http" (eq (toString (get $flat "server.ssl.enabled")) "true") -}}
{{- end -}}

{{/* The name of the claim with SQLite's file; empty: none. */}}
{{- define "kubesvc.claim" -}}
{{- if .Values.persistence.enabled -}}
{{ .Values.persistence.existingClaim | default (include "kubesvc.name" .) }}
{{- end -}}
{{- end -}}

{{/* Writes the leaves of `node` into `out`, by their dotted keys without case, hyphens and underscores, as the operator
matches them. */}}
{{- define "kubesvc.flatten" -}}
{{- range $key, $value := .node -}}
{{- $path := printf "%s.%s" $.path (lower (regexReplaceAll "[-_]" (toString $key) "")) | trimPrefix "." -}}
{{- if kindIs "map" $value -}}
{{- include "kubesvc.flatten" (dict "node" $value "path" $path "out" $.out) -}}
{{- else -}}
{{- $_ := set $.out ($path | trimPrefix "armory.") $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* All leaves of the settings, as JSON. */}}
{{- define "kubesvc.flat" -}}
{{- $flat := dict -}}
{{- include "kubesvc.flatten" (dict "node" .Values.settings "path" "" "out" $flat) -}}
{{- toJson $flat -}}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "kubesvc.portOf" -}}
{{- $url := urlParse . -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end -}}

{{/* The ports of Clouddriver and of its credentials sources, as a list in JSON. */}}
{{- define "kubesvc.clouddriverPorts" -}}
{{- $flat := include "kubesvc.flat" . | fromJson -}}
{{- $ports := list -}}
{{- with get $flat "kubesvc.clouddriver.baseurl" -}}
{{- $ports = append $ports (include "kubesvc.portOf" .) -}}
{{- end -}}
{{- range (get $flat "kubesvc.clouddriver.sources" | default list) -}}
{{- with .uri -}}
{{- $ports = append $ports (include "kubesvc.portOf" .) -}}
{{- end -}}
{{- with .url -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" (urlParse .).host) -}}
{{- with $port -}}
{{- $ports = append $ports . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $ports | toJson -}}
{{- end -}}

{{/* kubesvc.yml: the settings, and what follows from other values. */}}
{{- define "kubesvc.settings" -}}
{{- $flat := include "kubesvc.flat" . | fromJson -}}
{{- $added := dict -}}
{{- if not (include "kubesvc.shared" .) -}}
{{- $_ := set $added "database" (dict "url" "sqlite:///var/lib/kubesvc/kubesvc.db") -}}
{{- end -}}
{{- with .Values.watchNamespaces -}}
{{- $_ := set $added "watchNamespaces" . -}}
{{- end -}}
{{- $open := or (gt (int .Values.replicas) 1) (ne .Values.expose.type "none") -}}
{{- if and $open (not (hasKey $flat "kubesvc.agents.approval")) -}}
{{- $_ := set $added "agents" (dict "approval" "manual") -}}
{{- end -}}
{{- $pushes := eq (toString (get $flat "kubesvc.clouddriver.push.enabled")) "true" -}}
{{- if and $pushes (ne (include "kubesvc.name" .) "kubesvc-operator") (not (hasKey $flat "kubesvc.clouddriver.push.gateway")) -}}
{{- $_ := set $added "clouddriver" (dict "push" (dict "gateway" (printf "https://%s.%s.svc:6443" (include "kubesvc.name" .) .Release.Namespace))) -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.settings) (dict "kubesvc" $added) | toYaml -}}
{{- end -}}
