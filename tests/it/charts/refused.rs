//! Bad values, each refused with a sentence that names the value and what to do.

use super::template;

/// Values, and the sentence that refuses them.
type Refusal = (&'static [&'static str], &'static str);

#[test]
fn bad_operator_values_are_refused_with_a_remedy() {
    refuses("kubesvc", OPERATOR);
}

#[test]
fn bad_agent_values_are_refused_with_a_remedy() {
    refuses("kubesvc-agent", AGENT);
}

fn refuses(chart: &str, rows: &[Refusal]) {
    for (values, sentence) in rows {
        let said = template(chart, values);
        assert_ne!(said.code, Some(0), "{chart} takes {values:?}");
        assert!(
            said.stderr.contains(sentence),
            "{chart} {values:?}: {sentence:?} is not in\n{}",
            said.stderr
        );
        assert!(said.stdout.is_empty(), "{chart} {values:?}: {}", said.stdout);
    }
}

/// Variables whose values are secrets.
const SECRETS: &[(&str, &str)] = &[
    ("AWS_SECRET_ACCESS_KEY", "wJalr"),
    ("CLIENT_SECRET", "x"),
    ("clientSecret", "x"),
    ("HUB_TOKEN_2", "x"),
    ("DB_PWD", "a1"),
    ("STRIPE_API_KEY", "x"),
    ("HTTPS_PROXY", "http://user:x@proxy:3128"),
    ("JDBC_URL", "jdbc:mysql://db/k?user=u&password=x"),
];

/// Variables whose values are none, whatever their names look like.
const NO_SECRETS: &[(&str, &str)] = &[
    ("AWS_ACCESS_KEY_ID", "AKIA"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/var/run/key.json"),
    ("CLIENT_SECRET_NAME", "hub-client"),
    ("TOKEN_TTL", "10m"),
    ("COPIED_TOKEN", "$(TOKEN)"),
    ("HTTPS_PROXY", "http://proxy:3128"),
    ("HTTP_PROXY", "http://user:$(PROXY_PASSWORD)@proxy:3128"),
    ("JDBC_URL", "jdbc:mysql://db/k?user=u&password=$(DB_PASSWORD)"),
    ("PASSWORD", ""),
];

#[test]
fn values_of_variables_are_refused_if_they_are_secrets_and_only_then() {
    for (chart, mode) in [("kubesvc", "image.tag="), ("kubesvc-agent", "mode=spinnaker-service")] {
        for (name, value) in SECRETS {
            let (name, value) = (format!("extraEnv[0].name={name}"), format!("extraEnv[0].value={value}"));
            let said = template(chart, &[mode, &name, &value]);
            assert!(said.stderr.contains("with its value in the clear"), "{chart} {name}: {}", said.stderr);
        }
        let mut values = vec![mode.to_owned()];
        for (index, (name, value)) in NO_SECRETS.iter().enumerate() {
            values.extend([
                format!("extraEnv[{index}].name={name}"),
                format!("extraEnv[{index}].value={value}"),
            ]);
        }
        let values: Vec<_> = values.iter().map(String::as_str).collect();
        assert_eq!(template(chart, &values).code, Some(0), "{chart}: {}", template(chart, &values).stderr);
    }
}

const OPERATOR: &[Refusal] = &[
    (&["replica=3"], "additional properties 'replica' not allowed"),
    (&["replicas=three"], "at '/replicas': got string, want integer"),
    (&["replicas=-1"], "at '/replicas': minimum: got -1, want 0"),
    (&["replicas=3"], "at '/database': missing property 'existingSecret'"),
    (&["database.existingSecret="], "at '/database/existingSecret': '' does not match pattern"),
    (&["database.url=postgres://u:p@db/k"], "at '/database': additional properties 'url' not allowed"),
    (&["image.digest=0.1.0"], "at '/image/digest': '0.1.0' does not match pattern"),
    (
        &["image.pullPolicy=Sometimes"],
        "at '/image/pullPolicy': value must be one of '', 'IfNotPresent', 'Always', 'Never'",
    ),
    (&["expose.type=NodePort"], "at '/expose/type': value must be one of 'none', 'LoadBalancer', 'Gateway'"),
    (
        &["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={203.0.113.7}"],
        "at '/expose/loadBalancer/sourceRanges/0': '203.0.113.7' does not match pattern",
    ),
    (&["watchNamespaces={Team_A}"], "at '/watchNamespaces/0': 'Team_A' does not match pattern"),
    (&["watchNamespaces=team-a"], "at '/watchNamespaces': got string, want array"),
    (&["persistence.size=big"], "at '/persistence/size': 'big' does not match pattern"),
    (
        &["persistence.emptyDirSizeLimit=big"],
        "at '/persistence/emptyDirSizeLimit': 'big' does not match pattern",
    ),
    (
        &["persistence.size=1Gi", "persistence.enabled=yes please"],
        "at '/persistence/enabled': got string, want boolean",
    ),
    (&["services.rest.port=70000"], "at '/services/rest/port': maximum: got 70,000, want 65,535"),
    (&["monitoring.interval=30"], "at '/monitoring/interval'"),
    (
        &["monitoring.runbooks=docs/runbooks.md"],
        "at '/monitoring/runbooks': 'docs/runbooks.md' does not match",
    ),
    (
        &["podSecurityContext.readOnlyRootFilesystem=true"],
        "at '/podSecurityContext': additional properties 'readOnlyRootFilesystem' not allowed",
    ),
    (&["podSecurityContext.runAsUser=0"], "at '/podSecurityContext/runAsUser': minimum: got 0, want 1"),
    (&["resources.limits.memory=lots"], "at '/resources/limits/memory': 'lots' does not match pattern"),
    (
        &["settings.kubesvc.agents.approval=ask"],
        "at '/settings/kubesvc/agents/approval': value must be one of",
    ),
    (
        &["settings.kubesvc.rest.auth.mode=strict"],
        "at '/settings/kubesvc/rest/auth/mode': value must be one of",
    ),
    (
        &["settings.kubesvc.cache.operationWaitMz=5"],
        "settings has kubesvc.cache.operationwaitmz (here in lower case), which the operator does not know, so that it would not start: correct the key",
    ),
    (&["settings.server.port=seventy"], "at '/settings/server/port': got string, want null or integer"),
    (
        &["image.tag=latest"],
        "image.tag \"latest\" may name another image tomorrow: give a whole version, such as 0.1.0, or image.digest.",
    ),
    (&["image.tag=v1"], "image.tag \"v1\" may name another image tomorrow"),
    (
        &["image.repository=registry.example.com/kubesvc:0.1.0"],
        "image.repository \"registry.example.com/kubesvc:0.1.0\" contains a tag or a digest: move it to image.tag or image.digest.",
    ),
    (
        &["database.existingSecret=db", "persistence.enabled=true"],
        "persistence.enabled keeps SQLite's file, and database.existingSecret names another database: unset one of them.",
    ),
    (
        &["persistence.existingClaim=data"],
        "persistence.existingClaim has no effect without persistence.enabled: set it to true, or leave the claim out.",
    ),
    (
        &["settings.kubesvc.database.url=postgres://u:p@db/k"],
        "settings.kubesvc.database.url would stand in a ConfigMap, and may contain a password: store the URL in a Secret, and name it in database.existingSecret.",
    ),
    (
        &["settings.armory.kubesvc.data-base.URL=postgres://u:p@db/k"],
        "settings.kubesvc.database.url would stand in a ConfigMap",
    ),
    (
        &["settings.kubesvc.grpc.server.security.privateKeyPassword=hunter2"],
        "settings.kubesvc.grpc.server.security.privateKeyPassword would stand in a ConfigMap: store it in a Secret",
    ),
    (
        &["settings.server.ssl.keyPassword=hunter2"],
        "settings.server.ssl.keyPassword would stand in a ConfigMap: store it in a Secret",
    ),
    (
        &["monitoring.enabled=true", "settings.server.ssl.enabled=true"],
        "monitoring.enabled scrapes port 7002 without TLS",
    ),
    (
        &[
            "expose.type=Gateway",
            "settings.kubesvc.grpc.server.security.enabled=true",
            "settings.kubesvc.grpc.server.security.ownCertificate=true",
        ],
        "settings.kubesvc.grpc.server.security.enabled is true, and a Gateway, which ends the agents' TLS, speaks plain text to the pods",
    ),
    (
        &["settings.kubesvc.watch-namespaces={team-a}"],
        "settings.kubesvc.watchNamespaces comes without the rights: set watchNamespaces, which binds the role in each namespace too.",
    ),
    (
        &["watchNamespaces={*,team-a}"],
        "watchNamespaces has \"*\" beside others: \"*\" alone is all namespaces.",
    ),
    (
        &["settings.server.port=8080"],
        "settings.server.port is 8080, and the pod's ports, its probes and the network policy have 7002: leave it out.",
    ),
    (&["settings.kubesvc.grpc.server.port=9092"], "settings.kubesvc.grpc.server.port is 9092"),
    (&["settings.server.health.port=0"], "settings.server.health.port is 0, and the pod's ports"),
    (
        &["settings.server=null"],
        "settings.server.health.port is removed, and the probes ask port 7003: leave it as it is.",
    ),
    (
        &["gateway.enabled=true", "settings.kubesvc.gateway.server.port=8443"],
        "settings.kubesvc.gateway.server.port is 8443, and the pod's ports, its probes and the network policy have 6443",
    ),
    (
        &["settings.kubesvc.gateway.enabled=true"],
        "settings.kubesvc.gateway.enabled is true, and gateway.enabled, which brings the port, the rights and the APIService, is false: leave it out, and set gateway.enabled.",
    ),
    (
        &["gateway.enabled=true", "settings.kubesvc.gateway.enabled=false"],
        "settings.kubesvc.gateway.enabled is false, and gateway.enabled, which brings",
    ),
    (
        &[
            "settings.kubesvc.clouddriver.baseUrl=http://cd:7002",
            "settings.kubesvc.clouddriver.push.enabled=true",
        ],
        "settings.kubesvc.clouddriver.push.enabled is true, and Clouddriver then uses the API of accounts: set gateway.enabled",
    ),
    (
        &["extraEnv[0].name=KUBESVC_GATEWAY_ENABLED", "extraEnv[0].value='true'"],
        "extraEnv has KUBESVC_GATEWAY_ENABLED, which the chart sets: leave it out.",
    ),
    (
        &["settings.kubesvc.cluster=local"],
        "settings.kubesvc.cluster follows from the database and the Service here: leave it out.",
    ),
    (
        &["expose.type=LoadBalancer"],
        "expose.loadBalancer.sourceRanges is empty, and port 9091 does not authenticate agents: list the networks of your agents' clusters, such as 203.0.113.7/32 (docs/security.md).",
    ),
    (
        &["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={0.0.0.0/0}"],
        "expose.loadBalancer.sourceRanges has 0.0.0.0/0, which is everyone",
    ),
    (
        &["expose.type=Gateway"],
        "expose.gateway.hostnames is empty: list the name under which agents dial, such as kubesvc.example.com.",
    ),
    (
        &["expose.type=Gateway", "expose.gateway.hostnames={hub.example.com}"],
        "expose.gateway has neither parentRefs nor className",
    ),
    (
        &[
            "expose.type=Gateway",
            "expose.gateway.hostnames={hub.example.com}",
            "expose.gateway.className=public",
        ],
        "expose.gateway.tls.existingSecret is empty, and kubeconfigs go over this Gateway: name a Secret of type kubernetes.io/tls.",
    ),
    (
        &[
            "expose.type=Gateway",
            "expose.gateway.hostnames={hub.example.com}",
            "expose.gateway.className=public",
            "expose.gateway.parentRefs[0].name=public",
        ],
        "expose.gateway has parentRefs and className",
    ),
    (
        &[
            "expose.type=Gateway",
            "expose.gateway.hostnames={hub.example.com}",
            "expose.gateway.parentRefs[0].name=public",
        ],
        "expose.type is Gateway, and the network policy lets only agents' pods reach port 9091: name the Gateway's pods in networkPolicy.grpc.from.",
    ),
    (
        &["serviceAccount.create=false"],
        "serviceAccount.create is false, and the default service account should not have the operator's rights: name one in serviceAccount.name.",
    ),
    (
        &["podLabels.app\\.kubernetes\\.io/name=mine"],
        "podLabels has app.kubernetes.io/name, by which Service and Deployment select the pods: leave it out.",
    ),
    (
        &["extraEnv[0].name=POD_NAME", "extraEnv[0].value=x"],
        "extraEnv has POD_NAME, which the chart sets: leave it out.",
    ),
    (
        &["extraEnv[0].name=DB_PASSWORD", "extraEnv[0].value=x"],
        "extraEnv has DB_PASSWORD with its value in the clear: take it from a Secret, with valueFrom.secretKeyRef.",
    ),
];

const AGENT: &[Refusal] = &[
    (
        &["mode=spinnaker-service", "settings.clouddriver.tls.clientKeyFilePassword=x"],
        "settings.clouddriver.tls.clientkeyfilepassword would stand in a ConfigMap: store it in a Secret, and give it to the agent as CLOUDDRIVER_TLS_CLIENTKEYFILEPASSWORD in extraEnv, with valueFrom.secretKeyRef.",
    ),
    (
        &["mode=spinnaker-service", "settings.clouddriver.auth.token=x"],
        "settings.clouddriver.auth.token would stand in a ConfigMap: store it in a Secret, and give it to the agent as CLOUDDRIVER_AUTH_TOKEN in extraEnv, with valueFrom.secretKeyRef.",
    ),
    (
        &[
            "mode=spinnaker-service",
            "settings.server.ssl.enabled=true",
            "settings.server.ssl.clientAuth=need",
        ],
        "settings.server.ssl.clientauth is need, and the kubelet shows no certificate when it probes the pod: set want.",
    ),
    (
        &[],
        "mode is required: agent (in the cluster that it looks after), infrastructure (near a group of clusters) or spinnaker-service (beside the operator); docs/modes.md compares them.",
    ),
    (
        &["mode=sidecar"],
        "at '/mode': value must be one of '', 'agent', 'infrastructure', 'spinnaker-service'",
    ),
    (
        &["mode=agent", "clusterName=prod", "hub.address=hub.example.com:9091", "zone=east"],
        "additional properties 'zone' not allowed",
    ),
    (
        &["mode=agent", "hub.address=hub.example.com:9091"],
        "clusterName is required in mode agent: it is the name of the account and of the zone, so give each cluster another one.",
    ),
    (
        &[
            "mode=agent",
            "clusterName=prod",
            "hub.address=hub.example.com:9091",
            "clusterName=kubesvc-agent_kubesvc",
        ],
        "clusterName \"kubesvc-agent_kubesvc\" is of the form NAME_NAMESPACE, which is the same in each cluster where the chart is installed like this: agents of one zone get one another's accounts. Name the cluster or the group.",
    ),
    (
        &["mode=agent", "clusterName=prod", "hub.address=hub.example.com:9091", "zoneId=east"],
        "zoneId differs from clusterName, and in mode agent the zone is clusterName: leave zoneId out.",
    ),
    (
        &[
            "mode=agent",
            "clusterName=prod",
            "hub.address=hub.example.com:9091",
            "accounts[0].name=b",
            "accounts[0].kubeconfigFile=/kubeconfigfiles/b",
        ],
        "accounts is set, and in mode agent there is one account, that of the agent's own cluster: leave accounts out, or use mode infrastructure.",
    ),
    (
        &[
            "mode=agent",
            "clusterName=prod",
            "hub.address=hub.example.com:9091",
            "kubeconfigs.existingSecret=k",
        ],
        "kubeconfigs.existingSecret is set, and in mode agent the account uses the agent's service account: leave it out, or use mode infrastructure.",
    ),
    (
        &[
            "mode=agent",
            "clusterName=prod",
            "hub.address=hub.example.com:9091",
            "settings.kubernetes.polycy.serviceAccount=deny",
        ],
        "settings has kubernetes.polycy.serviceaccount (here in lower case), which the agent does not know",
    ),
    (
        &["mode=agent", "clusterName=prod", "hub.address=hub.example.com:9091", "rbac.preset=none"],
        "rbac.preset is none, and in mode agent the account uses the agent's service account: set view, deploy or helm.",
    ),
    (
        &["mode=agent", "clusterName=prod", "hub.address=hub.example.com:9091", "rbac.preset=admin"],
        "at '/rbac/preset': value must be one of '', 'none', 'view', 'deploy', 'helm'",
    ),
    (
        &["mode=agent", "clusterName=prod"],
        "hub.address is required in mode agent: the host and port under which the operator's port 9091 is reached from here, such as kubesvc.example.com:443.",
    ),
    (
        &["mode=infrastructure", "hub.address=hub.example.com:9091"],
        "zoneId is required in mode infrastructure: name the group of clusters that these agents reach.",
    ),
    (
        &["mode=infrastructure", "zoneId=east", "hub.address=hub.example.com:9091", "zoneId=x_kubesvc"],
        "zoneId \"x_kubesvc\" is of the form NAME_NAMESPACE",
    ),
    (
        &["mode=infrastructure", "zoneId=east", "hub.address=hub.example.com:9091", "clusterName=prod"],
        "clusterName is set, and it counts in mode agent only: set zoneId in mode infrastructure.",
    ),
    (
        &["mode=infrastructure", "zoneId=east", "hub.address=hub.example.com:9091", "accounts[0].name=b"],
        "accounts: b has no credential: give it a kubeconfigFile, such as /kubeconfigfiles/b.",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "accounts[0].name=b",
            "accounts[0].kubeconfigContents=x",
        ],
        "accounts: b has kubeconfigContents, which would stand in a ConfigMap and has no effect: put it into a Secret",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "accounts[0].kubeconfigFile=/x",
        ],
        "at '/accounts/0': missing property 'name'",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "accounts[0].name=b",
            "accounts[0].kubeconfig=/x",
        ],
        "at '/accounts/0': additional properties 'kubeconfig' not allowed",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "accounts[0].name=b",
            "accounts[0].serviceAccount=true",
        ],
        "accounts: b uses the agent's service account, which has no rights: set rbac.preset to view, deploy or helm, or give it a kubeconfigFile.",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "accounts[0].name=b",
            "accounts[0].kubeconfigFile=/kubeconfigfiles/b",
        ],
        "accounts: b names /kubeconfigfiles/b, and nothing is mounted there: name the Secret with the kubeconfigs in kubeconfigs.existingSecret.",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "rbac.preset=view",
            "accounts[0].name=b",
            "accounts[0].serviceAccount=true",
            "accounts[0].kubeconfigFile=/x",
        ],
        "accounts: b has kubeconfigFile and serviceAccount: keep one of them.",
    ),
    (
        &[
            "mode=infrastructure",
            "zoneId=east",
            "hub.address=hub.example.com:9091",
            "rbac.extraRules[0].verbs={get}",
        ],
        "rbac.extraRules has no effect with rbac.preset none: set view, deploy or helm.",
    ),
    (
        &["mode=spinnaker-service", "accounts[0].name=b", "accounts[0].kubeconfigFile=/x"],
        "accounts and kubeconfigs.existingSecret are of mode infrastructure: in mode spinnaker-service the operator sends each account with its kubeconfig. Leave them out, or use that mode.",
    ),
    (&["mode=spinnaker-service", "hub.address=kubesvc-operator.kubesvc.svc"], "at '/hub/address'"),
    (&["mode=spinnaker-service", "hub.address=http://kubesvc-operator:9091"], "at '/hub/address'"),
    (
        &["mode=spinnaker-service", "hub.address=kubesvc-operator.kubesvc.svc:7002"],
        "hub.address \"kubesvc-operator.kubesvc.svc:7002\" has the port of REST or health: agents dial 9091.",
    ),
    (
        &["mode=spinnaker-service", "hub.address=localhost:9091"],
        "hub.address \"localhost:9091\" is the agent's own pod, where no hub is: name the operator's Service, such as kubesvc-operator.kubesvc.svc:9091.",
    ),
    (
        &["mode=spinnaker-service", "settings.clouddriver.grpc=hub:9091"],
        "settings.clouddriver.grpc is set, and the chart sets it from hub.address: use that.",
    ),
    (
        &["mode=spinnaker-service", "settings.zone-id=east"],
        "settings.zoneid is set, and the chart sets it from zoneId: use that.",
    ),
    (
        &["mode=spinnaker-service", "settings.server.port=9000"],
        "settings.server.port is 9000, and the pod's ports and probes have 8082: leave it out.",
    ),
    (&["mode=spinnaker-service", "image.tag=latest"], "image.tag \"latest\" may name another image tomorrow"),
    (
        &["mode=spinnaker-service", "podSecurityContext.runAsUser=nobody"],
        "at '/podSecurityContext/runAsUser': got string, want null or integer",
    ),
    (
        &["mode=spinnaker-service", "podLabels.app\\.kubernetes\\.io/name=mine"],
        "podLabels has app.kubernetes.io/name, by which the hub's network policy and the StatefulSet select the pods: leave it out.",
    ),
    (
        &["mode=spinnaker-service", "replicas=2", "extraEnv[0].name=AGENT_ID", "extraEnv[0].value=a"],
        "extraEnv has AGENT_ID, which would give all 2 agents one id: leave it out, or set replicas=1.",
    ),
];
