{{/* What the schema cannot refuse, each with what to do. */}}
{{- define "kubesvc.checks" -}}
{{- include "kubesvc.checkKeys" . -}}
{{- $flat := include "kubesvc.flat" . | fromJson -}}
{{- with .Values.image -}}
{{- if and (not .digest) .tag (or (not (regexMatch "[0-9]" .tag)) (regexMatch "^v?[0-9]+([.][0-9]+)?$" .tag)) -}}
{{- fail (printf "image.tag %q may name another image tomorrow: give a whole version, such as %s, or image.digest." .tag $.Chart.AppVersion) -}}
{{- end -}}
{{- if regexMatch "[@]|:[^/]*$" .repository -}}
{{- fail (printf "image.repository %q contains a tag or a digest: move it to image.tag or image.digest." .repository) -}}
{{- end -}}
{{- end -}}
{{- $shared := include "kubesvc.shared" . -}}
{{- if and (gt (int .Values.replicas) 1) (not $shared) -}}
{{- fail "replicas is more than 1, and SQLite serves one: store the URL of MySQL, MariaDB or PostgreSQL in a Secret, and name it in database.existingSecret (docs/operating.md)." -}}
{{- end -}}
{{- if and $shared .Values.persistence.enabled -}}
{{- fail "persistence.enabled keeps SQLite's file, and database.existingSecret names another database: unset one of them." -}}
{{- end -}}
{{- if and .Values.persistence.existingClaim (not .Values.persistence.enabled) -}}
{{- fail "persistence.existingClaim has no effect without persistence.enabled: set it to true, or leave the claim out." -}}
{{- end -}}
{{- if hasKey $flat "kubesvc.database.url" -}}
{{- fail "settings.kubesvc.database.url would stand in a ConfigMap, and may contain a password: store the URL in a Secret, and name it in database.existingSecret." -}}
{{- end -}}
{{- if get $flat "kubesvc.grpc.server.security.privatekeypassword" -}}
{{- fail "settings.kubesvc.grpc.server.security.privateKeyPassword would stand in a ConfigMap: store it in a Secret, and give it in extraEnv as KUBESVC_GRPC_SERVER_SECURITY_PRIVATEKEYPASSWORD." -}}
{{- end -}}
{{- if get $flat "server.ssl.keypassword" -}}
{{- fail "settings.server.ssl.keyPassword would stand in a ConfigMap: store it in a Secret, and give it in extraEnv as SERVER_SSL_KEYPASSWORD." -}}
{{- end -}}
{{- if and .Values.monitoring.enabled (eq (include "kubesvc.restProtocol" .) "https") -}}
{{- fail "monitoring.enabled scrapes port 7002 without TLS, and settings.server.ssl.enabled is true: set monitoring.enabled: false, and apply a PodMonitor with your authority." -}}
{{- end -}}
{{- if hasKey $flat "kubesvc.watchnamespaces" -}}
{{- fail "settings.kubesvc.watchNamespaces comes without the rights: set watchNamespaces, which binds the role in each namespace too." -}}
{{- end -}}
{{- if and (has "*" .Values.watchNamespaces) (gt (len .Values.watchNamespaces) 1) -}}
{{- fail "watchNamespaces has \"*\" beside others: \"*\" alone is all namespaces." -}}
{{- end -}}
{{- range $key, $port := dict "server.port" 7002 "kubesvc.grpc.server.port" 9091 "kubesvc.gateway.server.port" 6443 "kubesvc.replicas.port" 7004 "server.health.port" 7003 -}}
{{- if and (hasKey $flat $key) (ne (toString (get $flat $key)) (toString $port)) -}}
{{- fail (printf "settings.%s is %v, and the pod's ports, its probes and the network policy have %d: leave it out. The Service's ports are services.rest.port and services.grpc.port." $key (get $flat $key) $port) -}}
{{- end -}}
{{- end -}}
{{- if not (hasKey $flat "server.health.port") -}}
{{- fail "settings.server.health.port is removed, and the probes ask port 7003: leave it as it is." -}}
{{- end -}}
{{- if and (hasKey $flat "kubesvc.gateway.enabled") (ne (toString (get $flat "kubesvc.gateway.enabled")) (toString .Values.gateway.enabled)) -}}
{{- fail (printf "settings.kubesvc.gateway.enabled is %v, and gateway.enabled, which brings the port, the rights and the APIService, is %v: leave it out, and set gateway.enabled." (get $flat "kubesvc.gateway.enabled") .Values.gateway.enabled) -}}
{{- end -}}
{{- if and (eq (toString (get $flat "kubesvc.clouddriver.push.enabled")) "true") (not .Values.gateway.enabled) -}}
{{- fail "settings.kubesvc.clouddriver.push.enabled is true, and Clouddriver then uses the API of accounts: set gateway.enabled (docs/beside-clouddriver.md)." -}}
{{- end -}}
{{- range $key := list "kubesvc.cluster" "kubesvc.clusterkubernetes.clouddriverservicenameprefix" -}}
{{- if hasKey $flat $key -}}
{{- fail (printf "settings.%s follows from the database and the Service here: leave it out." $key) -}}
{{- end -}}
{{- end -}}
{{- include "kubesvc.checkExpose" . -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false, and the default service account should not have the operator's rights: name one in serviceAccount.name." -}}
{{- end -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" -}}
{{- if hasKey $.Values.podLabels $label -}}
{{- fail (printf "podLabels has %s, by which Service and Deployment select the pods: leave it out." $label) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE" "KUBESVC_DATABASE_URL" "KUBESVC_GATEWAY_ENABLED" "KUBESVC_CLUSTERKUBERNETES_CLOUDDRIVERSERVICENAMEPREFIX") -}}
{{- fail (printf "extraEnv has %s, which the chart sets: leave it out." .name) -}}
{{- end -}}
{{- if include "kubesvc.isSecret" . -}}
{{- fail (printf "extraEnv has %s with its value in the clear: take it from a Secret, with valueFrom.secretKeyRef." .name) -}}
{{- end -}}
{{- end -}}
{{- include "kubesvc.checkUpgrade" . -}}
{{- end -}}

{{- define "kubesvc.checkExpose" -}}
{{- with .Values.expose -}}
{{- if eq .type "LoadBalancer" -}}
{{- if not .loadBalancer.sourceRanges -}}
{{- fail "expose.loadBalancer.sourceRanges is empty, and port 9091 does not authenticate agents: list the networks of your agents' clusters, such as 203.0.113.7/32 (docs/security.md)." -}}
{{- end -}}
{{- range .loadBalancer.sourceRanges -}}
{{- if has . (list "0.0.0.0/0" "::/0") -}}
{{- fail (printf "expose.loadBalancer.sourceRanges has %s, which is everyone, and port 9091 does not authenticate agents: list the networks of your agents' clusters (docs/security.md)." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq .type "Gateway" -}}
{{- if eq (include "kubesvc.hubProtocol" $) "https" -}}
{{- fail "settings.kubesvc.grpc.server.security.enabled is true, and a Gateway, which ends the agents' TLS, speaks plain text to the pods: leave it out, or set expose.type to LoadBalancer (docs/expose.md)." -}}
{{- end -}}
{{- if not .gateway.hostnames -}}
{{- fail "expose.gateway.hostnames is empty: list the name under which agents dial, such as kubesvc.example.com." -}}
{{- end -}}
{{- if and .gateway.parentRefs .gateway.className -}}
{{- fail "expose.gateway has parentRefs and className: give parentRefs for a Gateway that exists, or className for one of the chart." -}}
{{- end -}}
{{- if not (or .gateway.parentRefs .gateway.className) -}}
{{- fail "expose.gateway has neither parentRefs nor className: give parentRefs for a Gateway that exists, or className for one of the chart." -}}
{{- end -}}
{{- if and .gateway.className (not .gateway.tls.existingSecret) -}}
{{- fail "expose.gateway.tls.existingSecret is empty, and kubeconfigs go over this Gateway: name a Secret of type kubernetes.io/tls." -}}
{{- end -}}
{{- if and $.Values.networkPolicy.enabled (not $.Values.networkPolicy.grpc.from) -}}
{{- fail "expose.type is Gateway, and the network policy lets only agents' pods reach port 9091: name the Gateway's pods in networkPolicy.grpc.from." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One replica on SQLite has no Lease: it would lead beside the first of several. */}}
{{- define "kubesvc.checkUpgrade" -}}
{{- if and .Release.IsUpgrade (include "kubesvc.shared" .) -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (include "kubesvc.name" .) -}}
{{- if and (eq (dig "spec" "strategy" "type" "" .) "Recreate") (gt (int (dig "spec" "replicas" 1 .)) 0) -}}
{{- fail "one replica on SQLite runs, and would lead beside the first that uses the database: upgrade with replicas=0 and without database.existingSecret, wait until its pod is gone, and upgrade again (docs/operating.md)." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses a setting that the operator does not know, since it would end at once. `flat`: all settings. Keys inside of lists are
left to it. */}}
{{- define "kubesvc.checkKeys" -}}
{{- $keys := .Files.Get "files/settings-keys.txt" | trim | splitList "\n" -}}
{{- range $key, $value := include "kubesvc.flat" . | fromJson -}}
{{- $known := or (kindIs "invalid" $value) (not (hasPrefix "kubesvc." $key)) (has $key $keys) -}}
{{- range $keys -}}
{{- if and (hasSuffix ".*" .) (hasPrefix (trimSuffix "*" .) $key) -}}
{{- $known = true -}}
{{- end -}}
{{- end -}}
{{- if not $known -}}
{{- fail (printf "settings has %s (here in lower case), which the operator does not know, so that it would not start: correct the key, or leave it out (docs/settings.md)." $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether a variable has a secret as its value: by its name, unless the value is a path, a switch or a reference, or by
credentials in the value. */}}
{{- define "kubesvc.isSecret" -}}
{{- $value := toString (.value | default "") -}}
{{- $named := regexMatch "(?i)(password|passwd|passphrase|[_-]pwd|token|secret|credentials?|(secret|private|api|encryption|signing|master)[_.-]?(access[_.-]?)?key)[_-]?[0-9]*$" .name -}}
{{- $harmless := regexMatch "^(/.*|(?i:true|false)|\\$\\([A-Za-z_][A-Za-z0-9_]*\\)|encrypted(File)?:.*)?$" $value -}}
{{- $clear := regexReplaceAll "\\$\\([A-Za-z_][A-Za-z0-9_]*\\)" $value "" -}}
{{- if or (and $named (not $harmless)) (regexMatch "://[^/?#@]*:[^/?#@]+@|(?i:[?&;](password|token|secret)=[^&;])|-----BEGIN [A-Z ]*PRIVATE KEY-----" $clear) -}}
true
{{- end -}}
{{- end -}}
