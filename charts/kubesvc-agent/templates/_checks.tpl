{{/* What the schema cannot refuse, each with what to do. */}}
{{- define "kubesvc-agent.checks" -}}
{{- include "kubesvc-agent.checkKeys" . -}}
{{- $flat := include "kubesvc-agent.flat" . | fromJson -}}
{{- $preset := include "kubesvc-agent.preset" . -}}
{{- $mode := required "mode is required: agent (in the cluster that it looks after), infrastructure (near a group of clusters) or spinnaker-service (beside the operator); docs/modes.md compares them." .Values.mode -}}
{{- with .Values.image -}}
{{- if and (not .digest) .tag (or (not (regexMatch "[0-9]" .tag)) (regexMatch "^v?[0-9]+([.][0-9]+)?$" .tag)) -}}
{{- fail (printf "image.tag %q may name another image tomorrow: give a whole version, such as %s, or image.digest." .tag $.Chart.AppVersion) -}}
{{- end -}}
{{- if regexMatch "[@]|:[^/]*$" .repository -}}
{{- fail (printf "image.repository %q contains a tag or a digest: move it to image.tag or image.digest." .repository) -}}
{{- end -}}
{{- end -}}
{{- if eq $mode "agent" -}}
{{- $_ := required "clusterName is required in mode agent: it is the name of the account and of the zone, so give each cluster another one." .Values.clusterName -}}
{{- if and .Values.zoneId (ne .Values.zoneId .Values.clusterName) -}}
{{- fail "zoneId differs from clusterName, and in mode agent the zone is clusterName: leave zoneId out." -}}
{{- end -}}
{{- if .Values.accounts -}}
{{- fail "accounts is set, and in mode agent there is one account, that of the agent's own cluster: leave accounts out, or use mode infrastructure." -}}
{{- end -}}
{{- if .Values.kubeconfigs.existingSecret -}}
{{- fail "kubeconfigs.existingSecret is set, and in mode agent the account uses the agent's service account: leave it out, or use mode infrastructure." -}}
{{- end -}}
{{- if eq $preset "none" -}}
{{- fail "rbac.preset is none, and in mode agent the account uses the agent's service account: set view, deploy or helm." -}}
{{- end -}}
{{- else -}}
{{- if .Values.clusterName -}}
{{- fail (printf "clusterName is set, and it counts in mode agent only: set zoneId in mode %s." $mode) -}}
{{- end -}}
{{- end -}}
{{- if eq $mode "infrastructure" -}}
{{- $_ := required "zoneId is required in mode infrastructure: name the group of clusters that these agents reach." .Values.zoneId -}}
{{- end -}}
{{- if eq $mode "spinnaker-service" -}}
{{- if or .Values.accounts .Values.kubeconfigs.existingSecret -}}
{{- fail "accounts and kubeconfigs.existingSecret are of mode infrastructure: in mode spinnaker-service the operator sends each account with its kubeconfig. Leave them out, or use that mode." -}}
{{- end -}}
{{- end -}}
{{- $zone := include "kubesvc-agent.zone" . -}}
{{- if and $zone (ne $mode "spinnaker-service") (or (hasSuffix (printf "_%s" .Release.Namespace) $zone) (hasPrefix (printf "%s_" (include "kubesvc-agent.name" .)) $zone)) -}}
{{- fail (printf "%s %q is of the form NAME_NAMESPACE, which is the same in each cluster where the chart is installed like this: agents of one zone get one another's accounts. Name the cluster or the group." (ternary "clusterName" "zoneId" (eq $mode "agent")) $zone) -}}
{{- end -}}
{{- range .Values.accounts -}}
{{- if .kubeconfigContents -}}
{{- fail (printf "accounts: %s has kubeconfigContents, which would stand in a ConfigMap and has no effect: put it into a Secret, name that in kubeconfigs.existingSecret, and give the account a kubeconfigFile." .name) -}}
{{- end -}}
{{- if and .serviceAccount (eq $preset "none") -}}
{{- fail (printf "accounts: %s uses the agent's service account, which has no rights: set rbac.preset to view, deploy or helm, or give it a kubeconfigFile." .name) -}}
{{- end -}}
{{- if not (or .serviceAccount .kubeconfigFile) -}}
{{- fail (printf "accounts: %s has no credential: give it a kubeconfigFile, such as /kubeconfigfiles/%s." .name .name) -}}
{{- end -}}
{{- if and .serviceAccount .kubeconfigFile -}}
{{- fail (printf "accounts: %s has kubeconfigFile and serviceAccount: keep one of them." .name) -}}
{{- end -}}
{{- if and (hasPrefix "/kubeconfigfiles/" (.kubeconfigFile | default "")) (not $.Values.kubeconfigs.existingSecret) -}}
{{- fail (printf "accounts: %s names %s, and nothing is mounted there: name the Secret with the kubeconfigs in kubeconfigs.existingSecret." .name .kubeconfigFile) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.rbac.extraRules (eq $preset "none") -}}
{{- fail "rbac.extraRules has no effect with rbac.preset none: set view, deploy or helm." -}}
{{- end -}}
{{- range $key, $value := dict "clouddriver.grpc" "hub.address" "clouddriver.insecure" "hub.tls.enabled" "zoneid" "zoneId" "kubernetes.accounts" "accounts" "prometheus.enabled" "monitoring.enabled" -}}
{{- if hasKey $flat $key -}}
{{- fail (printf "settings.%s is set, and the chart sets it from %s: use that." $key $value) -}}
{{- end -}}
{{- end -}}
{{- range $key, $port := dict "server.port" 8082 "prometheus.port" 8008 -}}
{{- if and (hasKey $flat $key) (ne (toString (get $flat $key)) (toString $port)) -}}
{{- fail (printf "settings.%s is %v, and the pod's ports and probes have %d: leave it out." $key (get $flat $key) $port) -}}
{{- end -}}
{{- end -}}
{{- range $key, $variable := dict "clouddriver.tls.clientkeyfilepassword" "CLOUDDRIVER_TLS_CLIENTKEYFILEPASSWORD" "clouddriver.tls.clientkeypassword" "CLOUDDRIVER_TLS_CLIENTKEYPASSWORD" "server.ssl.keypassword" "SERVER_SSL_KEYPASSWORD" "server.ssl.keyfilepassword" "SERVER_SSL_KEYFILEPASSWORD" "clouddriver.auth.token" "CLOUDDRIVER_AUTH_TOKEN" -}}
{{- if get $flat $key -}}
{{- fail (printf "settings.%s would stand in a ConfigMap: store it in a Secret, and give it to the agent as %s in extraEnv, with valueFrom.secretKeyRef." $key $variable) -}}
{{- end -}}
{{- end -}}
{{- if and (include "kubesvc-agent.healthTls" .) (eq (lower (toString (get $flat "server.ssl.clientauth"))) "need") -}}
{{- fail "settings.server.ssl.clientauth is need, and the kubelet shows no certificate when it probes the pod: set want." -}}
{{- end -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey $.Values.podLabels $label -}}
{{- fail (printf "podLabels has %s, by which the hub's network policy and the StatefulSet select the pods: leave it out." $label) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE" "DEPLOYMENT_NAME" "PROMETHEUS_ENABLED") -}}
{{- fail (printf "extraEnv has %s, which the chart sets: leave it out." .name) -}}
{{- end -}}
{{- if and (eq .name "AGENT_ID") (gt (int $.Values.replicas) 1) -}}
{{- fail (printf "extraEnv has AGENT_ID, which would give all %d agents one id: leave it out, or set replicas=1." (int $.Values.replicas)) -}}
{{- end -}}
{{- if include "kubesvc-agent.isSecret" . -}}
{{- fail (printf "extraEnv has %s with its value in the clear: take it from a Secret, with valueFrom.secretKeyRef." .name) -}}
{{- end -}}
{{- end -}}
{{- if $mode -}}
{{- include "kubesvc-agent.checkHub" . -}}
{{- end -}}
{{- end -}}

{{- define "kubesvc-agent.checkHub" -}}
{{- $address := include "kubesvc-agent.hub" . -}}
{{- if not $address -}}
{{- fail (printf "hub.address is required in mode %s: the host and port under which the operator's port 9091 is reached from here, such as kubesvc.example.com:443." .Values.mode) -}}
{{- end -}}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" -}}
{{- $port := $address | trimPrefix (printf "%s:" $host) -}}
{{- if has $port (list "7002" "7003") -}}
{{- fail (printf "hub.address %q has the port of REST or health: agents dial 9091." $address) -}}
{{- end -}}
{{- if or (has $host (list "localhost" "[::1]")) (hasPrefix "127." $host) -}}
{{- fail (printf "hub.address %q is the agent's own pod, where no hub is: name the operator's Service, such as kubesvc-operator.kubesvc.svc:9091." $address) -}}
{{- end -}}
{{- $parts := splitList "." ($host | trimSuffix ".cluster.local" | trimSuffix ".svc") -}}
{{- $local := or (hasSuffix ".svc" $host) (hasSuffix ".svc.cluster.local" $host) (eq (len $parts) 1) -}}
{{- /* NAME.NAMESPACE is local too; example.com is not, unless there is a namespace com. */}}
{{- if and (not $local) .Values.hub.verify (eq (len $parts) 2) (not (regexMatch "^[0-9.]+$" $host)) -}}
{{- $local = not (empty (lookup "v1" "Namespace" "" (index $parts 1))) -}}
{{- end -}}
{{- /* Helm makes the release's own namespace only after this; that there is a cluster shows in another, which each has. */}}
{{- if and $local .Values.hub.verify (not (regexMatch "^[0-9.]+$|^\\[" $host)) (or (lookup "v1" "Namespace" "" .Release.Namespace) (lookup "v1" "Namespace" "" "default")) -}}
{{- $namespace := ternary (index $parts (sub (len $parts) 1 | int)) .Release.Namespace (gt (len $parts) 1) -}}
{{- $service := lookup "v1" "Service" $namespace (index $parts 0) -}}
{{- if not $service -}}
{{- fail (printf "hub.address is %q, and there is no Service %s in namespace %s: install the chart kubesvc there first, give the address under which the operator is reached, or set hub.verify=false." $address (index $parts 0) $namespace) -}}
{{- end -}}
{{- $ports := list -}}
{{- range $service.spec.ports -}}
{{- $ports = append $ports (toString .port) -}}
{{- end -}}
{{- if not (has $port $ports) -}}
{{- fail (printf "hub.address is %q, and the Service %s in namespace %s serves %s: correct the port." $address (index $parts 0) $namespace (join ", " $ports)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses a setting that the agent does not know, since it would end at once. `flat`: all settings. Keys inside of lists are
left to it. */}}
{{- define "kubesvc-agent.checkKeys" -}}
{{- $keys := .Files.Get "files/settings-keys.txt" | trim | splitList "\n" -}}
{{- range $key, $value := include "kubesvc-agent.flat" . | fromJson -}}
{{- $known := or (kindIs "invalid" $value) (has $key $keys) -}}
{{- range $keys -}}
{{- if and (hasSuffix ".*" .) (hasPrefix (trimSuffix "*" .) $key) -}}
{{- $known = true -}}
{{- end -}}
{{- end -}}
{{- if not $known -}}
{{- fail (printf "settings has %s (here in lower case), which the agent does not know, so that it would not start: correct the key, or leave it out (docs/settings.md)." $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a variable has a secret as its value: by its name, unless the value is a path, a switch or a reference, or by
credentials in the value. */}}
{{- define "kubesvc-agent.isSecret" -}}
{{- $value := toString (.value | default "") -}}
{{- $named := regexMatch "(?i)(password|passwd|passphrase|[_-]pwd|token|secret|credentials?|(secret|private|api|encryption|signing|master)[_.-]?(access[_.-]?)?key)[_-]?[0-9]*$" .name -}}
{{- $harmless := regexMatch "^(/.*|(?i:true|false)|\\$\\([A-Za-z_][A-Za-z0-9_]*\\)|encrypted(File)?:.*)?$" $value -}}
{{- $clear := regexReplaceAll "\\$\\([A-Za-z_][A-Za-z0-9_]*\\)" $value "" -}}
{{- if or (and $named (not $harmless)) (regexMatch "://[^/?#@]*:[^/?#@]+@|(?i:[?&;](password|token|secret)=[^&;])|-----BEGIN [A-Z ]*PRIVATE KEY-----" $clear) -}}
true
{{- end -}}
{{- end -}}
