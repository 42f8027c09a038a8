{{/* The name of all objects. It follows the alias that an umbrella chart gives this one, which is the chart's name then. */}}
{{- define "kubesvc-agent.name" -}}
{{- $own := eq .Chart.Name "kubesvc-agent" -}}
{{- $name := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name (.Chart.Name | lower | replace "_" "-")) (and $own (contains .Chart.Name .Release.Name))) -}}
{{- /* Room for the number of the pod, within the 63 characters of a label. Two long aliases stay apart. */}}
{{- if and (not $own) (gt (len $name) 52) -}}
{{- printf "%s-%s" ($name | trunc 43 | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- else -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The instance: the release, or the name where the chart has an alias. */}}
{{- define "kubesvc-agent.instance" -}}
{{ ternary .Release.Name (include "kubesvc-agent.name" .) (eq .Chart.Name "kubesvc-agent") }}
{{- end -}}

{{- define "kubesvc-agent.selector" -}}
app.kubernetes.io/name: kubesvc-agent
app.kubernetes.io/instance: {{ include "kubesvc-agent.instance" . }}
{{- end -}}

{{- define "kubesvc-agent.labels" -}}
{{ include "kubesvc-agent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kubesvc-agent.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The pod's security context, without keys that are set to null. */}}
{{- define "kubesvc-agent.podSecurityContext" -}}
{{- $context := dict -}}
{{- range $key, $value := .Values.podSecurityContext -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $context $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- define "kubesvc-agent.preset" -}}
{{ .Values.rbac.preset | default (ternary "deploy" "none" (eq .Values.mode "agent")) }}
{{- end -}}

{{- define "kubesvc-agent.hub" -}}
{{ .Values.hub.address | default (ternary (printf "kubesvc-operator.%s.svc:9091" .Release.Namespace) "" (eq .Values.mode "spinnaker-service")) }}
{{- end -}}

{{/* The zone. It does not depend on the name of the release. */}}
{{- define "kubesvc-agent.zone" -}}
{{- $default := ternary (printf "kubesvc-agent_%s" .Release.Namespace) "" (eq .Values.mode "spinnaker-service") -}}
{{ ternary .Values.clusterName (.Values.zoneId | default $default) (eq .Values.mode "agent") }}
{{- end -}}

{{/* Writes the leaves of `node` into `out`, by their dotted keys without case, hyphens and underscores, as the agent
matches them. */}}
{{- define "kubesvc-agent.flatten" -}}
{{- range $key, $value := .node -}}
{{- $path := printf "%s.%s" $.path (lower (regexReplaceAll "[-_]" (toString $key) "")) | trimPrefix "." -}}
{{- if kindIs "map" $value -}}
{{- include "kubesvc-agent.flatten" (dict "node" $value "path" $path "out" $.out) -}}
{{- else -}}
{{- $_ := set $.out $path $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* All leaves of the settings, as JSON. */}}
{{- define "kubesvc-agent.flat" -}}
{{- $flat := dict -}}
{{- include "kubesvc-agent.flatten" (dict "node" .Values.settings "path" "" "out" $flat) -}}
{{- toJson $flat -}}
{{- end -}}

{{/* Whether health is served over TLS. The test of the release then leaves it out, since it trusts no authority of it. */}}
{{- define "kubesvc-agent.healthTls" -}}
{{- if eq (toString (get (include "kubesvc-agent.flat" . | fromJson) "server.ssl.enabled")) "true" -}}
true
{{- end -}}
{{- end -}}

{{/* armory-agent.yml without accounts, as JSON: a change of it restarts the agent. */}}
{{- define "kubesvc-agent.restarting" -}}
{{- $flat := include "kubesvc-agent.flat" . | fromJson -}}
{{- $clouddriver := dict "grpc" (include "kubesvc-agent.hub" .) -}}
{{- if .Values.hub.tls.enabled -}}
{{- $_ := set $clouddriver "insecure" false -}}
{{- end -}}
{{- $added := dict "clouddriver" $clouddriver -}}
{{- with include "kubesvc-agent.zone" . -}}
{{- $_ := set $added "zoneId" . -}}
{{- end -}}
{{- if and (eq (include "kubesvc-agent.preset" .) "none") (not (hasKey $flat "kubernetes.policy.serviceaccount")) -}}
{{- $_ := set $added "kubernetes" (dict "policy" (dict "serviceAccount" false)) -}}
{{- end -}}
{{- if eq .Values.mode "agent" -}}
{{- $_ := set $added "dynamicAccounts" (dict "enabled" false) -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.settings) $added | toJson -}}
{{- end -}}

{{/* armory-agent.yml. */}}
{{- define "kubesvc-agent.settings" -}}
{{- $settings := include "kubesvc-agent.restarting" . | fromJson -}}
{{- $accounts := .Values.accounts -}}
{{- if eq .Values.mode "agent" -}}
{{- $accounts = list (dict "name" .Values.clusterName "serviceAccount" true) -}}
{{- end -}}
{{- with $accounts -}}
{{- $settings = mergeOverwrite $settings (dict "kubernetes" (dict "accounts" .)) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}
