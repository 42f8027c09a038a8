//! What the charts render, as text.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{MODES, agents, hooks, objects, of_kind, only, operators, text};
use crate::world::in_repository;
use kubesvc_testkit::{folder::Folder, helm, must};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn helm_lint_passes_in_every_mode() {
    let clean = |chart: &str, values: &[&str]| {
        let mut arguments = vec!["lint", "--strict", "--quiet", chart];
        for value in values {
            arguments.extend(["--set", value]);
        }
        let said = helm::run(None, arguments);
        assert!(said.code == Some(0) && said.stderr.is_empty(), "{chart} {values:?}: {said:?}");
    };
    clean("charts/kubesvc", &[]);
    for mode in MODES {
        clean("charts/kubesvc-agent", mode);
    }
}

#[test]
fn pods_are_restricted_and_run_one_version() {
    let every = operators().into_iter().map(|values| ("kubesvc", values));
    for (chart, values) in every.chain(agents().into_iter().map(|values| ("kubesvc-agent", values))) {
        let what = format!("{chart} {values:?}");
        let objects = objects(chart, &values);
        let workload = objects.iter().find(|one| one["spec"]["template"].is_object()).expect("pods");
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{what}");
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{what}");
        for container in pod["containers"].as_array().expect("containers") {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{what}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{what}");
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{what}");
            assert_eq!(container["image"], format!("kubesvc:{VERSION}"), "{what}");
        }
        let has_policy = of_kind(&objects, "NetworkPolicy").count() == 1;
        assert_eq!(has_policy, !values.contains(&"networkPolicy.enabled=false"), "{what}");
        for object in &objects {
            if object["kind"] != "CustomResourceDefinition" {
                let labels = &object["metadata"]["labels"];
                for label in ["name", "instance", "version", "managed-by"] {
                    assert!(labels[format!("app.kubernetes.io/{label}")].is_string(), "{what}: {object}");
                }
            }
        }
    }
}

#[test]
fn keys_of_the_pod_security_context_that_are_null_are_left_out() {
    for (chart, mode, kind) in
        [("kubesvc", &[][..], "Deployment"), ("kubesvc-agent", MODES[0], "StatefulSet")]
    {
        let context = |values: &[&str]| {
            let objects = objects(chart, &[mode, values].concat());
            only(&objects, kind)["spec"]["template"]["spec"]["securityContext"].clone()
        };
        let by_default = json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        assert_eq!(context(&[]), by_default, "{chart}");
        let assigned = [
            "podSecurityContext.runAsUser=null",
            "podSecurityContext.runAsGroup=null",
            "podSecurityContext.fsGroup=null",
        ];
        let without_ids = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(context(&assigned), without_ids, "{chart}");
        let other = context(&["podSecurityContext.fsGroup=1000680000", "podSecurityContext.sysctls=null"]);
        assert_eq!((&other["fsGroup"], &other["sysctls"]), (&json!(1_000_680_000), &Value::Null), "{chart}");
        assert_eq!(context(&["podSecurityContext=null"]), Value::Null, "{chart}");
    }
}

#[test]
fn size_of_the_folder_of_sqlite_is_a_value() {
    let database = |values: &[&str]| {
        let objects = objects("kubesvc", values);
        let volumes = only(&objects, "Deployment")["spec"]["template"]["spec"]["volumes"].as_array().cloned();
        let volumes = volumes.unwrap_or_default();
        volumes.into_iter().find(|volume| volume["name"] == "database").unwrap_or_default()
    };
    assert_eq!(database(&[])["emptyDir"], json!({"sizeLimit": "1Gi"}));
    let larger = database(&["persistence.emptyDirSizeLimit=20Gi"]);
    assert_eq!(larger["emptyDir"], json!({"sizeLimit": "20Gi"}));
    let kept = database(&["persistence.enabled=true", "persistence.emptyDirSizeLimit=20Gi"]);
    assert_eq!(kept["emptyDir"], Value::Null);
    assert!(kept["persistentVolumeClaim"].is_object(), "{kept}");
}

#[test]
fn alerts_link_to_the_page_of_runbooks_that_is_set() {
    let default = "https://github.com/kubesvc/kubesvc/blob/main/docs/runbooks.md";
    let set = "https://wiki.example.com/kubesvc?page=runbooks";
    let linked = format!("monitoring.runbooks={set}");
    for (chart, mode) in [("kubesvc", "replicas=1"), ("kubesvc-agent", "mode=spinnaker-service")] {
        for (value, page) in [("monitoring.enabled=true", default), (linked.as_str(), set)] {
            let objects = objects(chart, &[mode, "monitoring.enabled=true", value]);
            let groups = only(&objects, "PrometheusRule")["spec"]["groups"].as_array().cloned();
            let rules = groups.iter().flatten().flat_map(|group| group["rules"].as_array()).flatten();
            let links: Vec<_> =
                rules.map(|rule| rule["annotations"]["runbook_url"].as_str().unwrap_or_default()).collect();
            let prefix = format!("{page}#kubesvc");
            assert!(!links.is_empty(), "{chart}: {objects:?}");
            assert!(links.iter().all(|link| link.starts_with(&prefix)), "{chart}: {links:?}");
        }
    }
}

#[test]
fn chart_versions_match_the_programs() {
    for chart in ["kubesvc", "kubesvc-agent"] {
        let about = must(
            fs::read_to_string(in_repository(&format!("charts/{chart}/Chart.yaml")))
                .map_err(|e| e.to_string()),
        );
        let about: Value = must(serde_saphyr::from_str(&about).map_err(|e| e.to_string()));
        assert_eq!((&about["version"], &about["appVersion"]), (&json!(VERSION), &json!(VERSION)), "{chart}");
    }
    let mut tags = 0;
    for file in below(Path::new(&in_repository("config"))) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for tag in text.lines().filter_map(|line| line.trim().strip_prefix("newTag:")) {
            tags += 1;
            assert_eq!(tag.trim(), VERSION, "{}", file.display());
        }
    }
    assert!(tags >= 3, "{tags} tags");
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the repository");
    let paths = entries.map(|entry| entry.expect("an entry of that folder").path());
    paths.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

#[test]
fn programs_accept_the_rendered_settings() {
    let takes = |program: &str, arguments: &[&str], what: &str| {
        let said = must(
            Command::new(program).args(arguments).arg("--print-config").output().map_err(|e| e.to_string()),
        );
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success() && errors.is_empty(), "{what}: {errors}");
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    let settings = |chart: &str, values: &[&str], file: &str| {
        let objects = objects(chart, values);
        let folder = must(Folder::new("settings"));
        let yaml = only(&objects, "ConfigMap")["data"][file].as_str().expect("settings").to_owned();
        must(folder.write(file, &yaml));
        folder
    };
    for values in operators().into_iter().chain([vec![
        "watchNamespaces={team-a,team-b}",
        "settings.kubesvc.agents.forgetApprovedAfterSeconds=2592000",
        "settings.logging.fields.environment=production",
    ]]) {
        let folder = settings("kubesvc", &values, "kubesvc.yml");
        let file = folder.file("kubesvc.yml").display().to_string();
        let printed =
            takes(env!("CARGO_BIN_EXE_kubesvc-operator"), &["--config", &file], &format!("{values:?}"));
        if values.contains(&"watchNamespaces={team-a,team-b}") {
            assert!(printed.contains(r#"["team-a", "team-b"]"#) && printed.contains("2592000"), "{printed}");
        }
    }
    let with_accounts = [
        MODES[1],
        &[
            "kubeconfigs.existingSecret=k",
            "accounts[0].name=b",
            "accounts[0].kubeconfigFile=/kubeconfigfiles/b",
        ],
        &["hub.tls.enabled=true"],
    ]
    .concat();
    for values in agents().into_iter().chain([with_accounts]) {
        let folder = settings("kubesvc-agent", &values, "armory-agent.yml");
        let dir = folder.path().display().to_string();
        takes(env!("CARGO_BIN_EXE_kubesvc-agent"), &["--config-dir", &dir], &format!("{values:?}"));
    }
}

#[test]
fn placeholders_of_the_modes_are_refused_by_the_agent() {
    for (mode, placeholder) in [("agent", "${CLUSTER_NAME}"), ("infrastructure", "${ZONE_ID}")] {
        let dir = in_repository(&format!("config/modes/{mode}"));
        let agent = env!("CARGO_BIN_EXE_kubesvc-agent");
        let said = must(Command::new(agent).args(["--config-dir", &dir]).output().map_err(|e| e.to_string()));
        let errors = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{mode}: {errors}");
        assert!(errors.contains(placeholder) && errors.contains("is not filled in"), "{mode}: {errors}");
    }
}

#[test]
fn each_watched_namespace_gets_a_binding_and_all_of_them_a_cluster_role_binding() {
    let rendered = objects("kubesvc", &["watchNamespaces={team-a,kubesvc}"]);
    let bound: Vec<_> = of_kind(&rendered, "RoleBinding")
        .filter(|binding| binding["roleRef"]["kind"] == "ClusterRole")
        .map(|binding| binding["metadata"]["namespace"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(bound, ["kubesvc", "team-a"], "its own namespace too, once");
    let in_cluster = |objects: &[Value]| {
        let bindings = of_kind(objects, "ClusterRoleBinding");
        bindings.map(|binding| binding["roleRef"]["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        in_cluster(&rendered),
        [
            "kubesvc-operator-installations",
            "system:auth-delegator",
            "system:service-account-issuer-discovery"
        ],
        "it sees which namespaces of other installations are there; operations ask who calls"
    );
    assert_eq!(
        in_cluster(&objects("kubesvc", &[])),
        ["system:auth-delegator", "system:service-account-issuer-discovery"]
    );
    let all = objects("kubesvc", &["watchNamespaces={*}"]);
    assert_eq!(
        in_cluster(&all),
        [
            "kubesvc-operator",
            "kubesvc-operator-installations",
            "system:auth-delegator",
            "system:service-account-issuer-discovery"
        ]
    );
    for binding in rendered.iter().chain(&all).filter(|one| one["subjects"].is_array()) {
        assert_eq!(binding["subjects"][0]["namespace"], "kubesvc", "{binding}");
        assert_eq!(binding["subjects"][0]["name"], "kubesvc-operator", "{binding}");
    }
}

#[test]
fn names_and_selectors_are_consistent_in_any_release() {
    let render = |release: &str, chart: &str, values: &[&str]| {
        let mut arguments = vec!["template", release, chart, "-n", "armory", "--no-hooks"];
        for value in values {
            arguments.extend(["--set", value]);
        }
        super::read(&must(helm::run(None, arguments).ok()))
    };
    let long = "a-name-of-a-release-that-is-as-long-as-helm-allows-it";
    for (release, operator, agent) in [
        ("eu", "eu-kubesvc-operator", "eu-kubesvc-agent"),
        ("my-kubesvc", "my-kubesvc-operator", "my-kubesvc-kubesvc-agent"),
        (
            long,
            "a-name-of-a-release-that-is-as-long-as-helm-allows-operator",
            "a-name-of-a-release-that-is-as-long-as-helm-allows-i",
        ),
    ] {
        let operators = render(release, "charts/kubesvc", &["services.aliases.enabled=true"]);
        let agents = render(release, "charts/kubesvc-agent", &["mode=agent", "clusterName=prod", super::HUB]);
        let (deployment, set) = (only(&operators, "Deployment"), only(&agents, "StatefulSet"));
        assert_eq!(
            (&deployment["metadata"]["name"], &set["metadata"]["name"]),
            (&json!(operator), &json!(agent))
        );
        for (workload, objects) in [(deployment, &operators), (set, &agents)] {
            let selector = &workload["spec"]["selector"]["matchLabels"];
            assert_eq!(selector, &workload["spec"]["template"]["metadata"]["labels"]);
            for service in of_kind(objects, "Service") {
                assert_eq!(&service["spec"]["selector"], selector);
            }
            assert_eq!(&only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"], selector);
            let account = &only(objects, "ServiceAccount")["metadata"]["name"];
            assert_eq!(&workload["spec"]["template"]["spec"]["serviceAccountName"], account);
            for binding in objects.iter().filter(|one| one["subjects"].is_array()) {
                assert_eq!(
                    (&binding["subjects"][0]["name"], &binding["subjects"][0]["namespace"]),
                    (account, &json!("armory"))
                );
            }
        }
        let prefix =
            deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().and_then(|all| {
                all.iter().find(|one| one["name"] == "KUBESVC_CLUSTERKUBERNETES_CLOUDDRIVERSERVICENAMEPREFIX")
            });
        assert_eq!(
            prefix.map(|one| &one["value"]),
            Some(&json!(operator)),
            "replicas find one another by the Service"
        );
    }
}

/// What a selector selects.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}

#[test]
fn helm_test_asks_the_health_of_each_program_and_is_let_in() {
    let operator = objects("kubesvc", &["services.rest.port=80"]);
    let asked = hooks("kubesvc", &["services.rest.port=80"]);
    let pod = only(&asked, "Pod");
    assert_eq!(pod["metadata"]["annotations"]["helm.sh/hook"], "test");
    let url = "http://kubesvc-operator:80/health/readiness";
    assert_eq!(pod["spec"]["containers"][0]["args"], json!(["check", url]));
    let labels = &pod["metadata"]["labels"];
    for service in of_kind(&operator, "Service") {
        assert!(!selects(&service["spec"]["selector"], labels), "it is no operator: {service}");
    }
    let policy = only(&operator, "NetworkPolicy")["spec"]["ingress"].as_array().expect("rules").clone();
    let rest = policy.iter().find(|rule| rule["ports"][0]["port"] == 7002).expect("the rule of REST");
    let mut pods = rest["from"].as_array().expect("peers").iter();
    assert!(pods.any(|peer| selects(&peer["podSelector"]["matchLabels"], labels)), "{rest}");

    for mode in &MODES {
        let agent = objects("kubesvc-agent", mode);
        let asked = hooks("kubesvc-agent", mode);
        let pod = only(&asked, "Pod");
        let labels = &pod["metadata"]["labels"];
        let of_agents = &only(&agent, "StatefulSet")["spec"]["template"]["metadata"]["labels"];
        let service = only(&asked, "Service");
        assert!(selects(&service["spec"]["selector"], of_agents), "{service}");
        assert!(!selects(&service["spec"]["selector"], labels), "it is no agent: {service}");
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        // The pod has the same name, which alone would lead to itself.
        let namespace = service["metadata"]["namespace"].as_str().unwrap_or_default();
        let url = format!("http://{name}.{namespace}.svc:8082/health/readiness");
        assert_eq!(pod["spec"]["containers"][0]["args"], json!(["check", url]));
        let policy = only(&asked, "NetworkPolicy");
        assert!(selects(&policy["spec"]["podSelector"]["matchLabels"], of_agents), "{policy}");
        let from = &policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
        assert!(selects(from, labels), "{policy}");
    }
}

#[test]
fn agents_are_probed_over_tls_where_health_has_it() {
    let probes = |values: &[&str]| {
        let agent = objects("kubesvc-agent", values);
        let container = &only(&agent, "StatefulSet")["spec"]["template"]["spec"]["containers"][0];
        ["livenessProbe", "readinessProbe"].map(|probe| container[probe]["httpGet"]["scheme"].clone())
    };
    let plain = ["mode=spinnaker-service"];
    assert_eq!(probes(&plain), [json!(null), json!(null)]);
    let tls = [
        "mode=spinnaker-service",
        "settings.server.ssl.enabled=true",
        "settings.server.ssl.certFile=/tls/tls.pem",
    ];
    assert_eq!(probes(&tls), [json!("HTTPS"), json!("HTTPS")]);
    assert!(hooks("kubesvc-agent", &tls).is_empty(), "the test of the release trusts no authority of health");
}

#[test]
fn api_servers_on_any_port_are_reached_through_the_network_policy() {
    let ports = |values: &[&str]| {
        let objects = objects("kubesvc", values);
        let egress = only(&objects, "NetworkPolicy")["spec"]["egress"].as_array().expect("rules").clone();
        let all = egress.iter().flat_map(|rule| rule["ports"].as_array().cloned().unwrap_or_default());
        all.filter_map(|port| port["port"].as_u64()).collect::<Vec<_>>()
    };
    let usual = ports(&[]);
    assert!(usual.contains(&443) && usual.contains(&6443) && !usual.contains(&16443), "{usual:?}");
    let other = ports(&["networkPolicy.apiServer.ports={443,16443}"]);
    assert!(other.contains(&16443) && !other.contains(&6443) && other.contains(&5432), "{other:?}");
}

#[test]
fn clouddriver_is_reached_through_the_network_policy_at_the_port_of_its_url() {
    let ports = |values: &[&str]| {
        let objects = objects("kubesvc", values);
        let egress = only(&objects, "NetworkPolicy")["spec"]["egress"].as_array().expect("rules").clone();
        let alone =
            egress.iter().filter(|rule| rule["to"].is_null()).filter_map(|rule| rule["ports"].as_array());
        alone
            .filter(|ports| ports.len() == 1)
            .filter_map(|ports| ports[0]["port"].as_u64())
            .collect::<Vec<_>>()
    };
    assert_eq!(ports(&[]), Vec::<u64>::new());
    for (url, port) in [
        ("http://spin-clouddriver.spinnaker:7002", 7002),
        ("https://clouddriver.example:8443/base", 8443),
        ("https://clouddriver.example", 443),
        ("http://[fd00::7]/", 80),
    ] {
        assert_eq!(ports(&[&format!("settings.kubesvc.clouddriver.baseUrl={url}")]), [port], "{url}");
    }
    // As a Clouddriver file has it.
    assert_eq!(ports(&["settings.armory.kubesvc.clouddriver.base-url=http://cd:7003"]), [7003]);
}

#[test]
fn credentials_sources_are_reached_and_may_be_read_each_by_its_name() {
    let sources = [
        "[0].name=sql",
        "[0].type=sql",
        "[0].url=mysql://u@db:3307/clouddriver",
        "[1].name=config",
        "[1].type=configServer",
        "[1].uri=http://config:8888",
        "[2].name=files",
        "[2].type=file",
        "[2].secret.namespace=spinnaker",
        "[2].secret.name=files",
        "[3].name=map",
        "[3].type=file",
        "[3].configMap.name=extra",
    ];
    let sources = sources.map(|one| format!("settings.kubesvc.clouddriver.sources{one}"));
    let objects = objects("kubesvc", &sources.each_ref().map(String::as_str));
    let roles: Vec<_> = objects
        .iter()
        .filter(|object| {
            object["kind"] == "Role"
                && object["metadata"]["name"].as_str().is_some_and(|name| name.contains("-source-"))
        })
        .map(|role| {
            let rule = &role["rules"][0];
            (
                role["metadata"]["namespace"].clone(),
                rule["resources"][0].clone(),
                rule["resourceNames"][0].clone(),
            )
        })
        .collect();
    assert_eq!(
        roles,
        [
            (json!("spinnaker"), json!("secrets"), json!("files")),
            (json!("kubesvc"), json!("configmaps"), json!("extra")),
        ]
    );
    let policy =
        objects.iter().find(|object| object["kind"] == "NetworkPolicy").expect("a policy").to_string();
    assert!(policy.contains("{\"port\":3307},{\"port\":8888}"), "{policy}");
}

#[test]
fn clouddriver_is_told_the_service_of_a_release_of_another_name() {
    let settings = |more: &[&str]| {
        let push = [
            "gateway.enabled=true",
            "settings.kubesvc.clouddriver.baseUrl=http://cd:7002",
            "settings.kubesvc.clouddriver.push.enabled=true",
        ];
        let objects = objects("kubesvc", &[&push, more].concat());
        let file = only(&objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().expect("settings").to_owned();
        let settings: Value = must(serde_saphyr::from_str(&file).map_err(|e| e.to_string()));
        settings["kubesvc"]["clouddriver"]["push"]["gateway"].clone()
    };
    assert_eq!(settings(&[]), Value::Null, "the operator's default");
    assert_eq!(settings(&["fullnameOverride=eu"]), json!("https://eu-operator.kubesvc.svc:6443"));
    let given = "settings.kubesvc.clouddriver.push.gateway=https://kubesvc.example:6443";
    assert_eq!(settings(&["fullnameOverride=eu", given]), json!("https://kubesvc.example:6443"));
}

#[test]
fn rendered_permissions_match_the_preset() {
    let verbs_on = |objects: &[Value], resource: &str| -> Vec<String> {
        let rules =
            of_kind(objects, "ClusterRole").flat_map(|role| role["rules"].as_array().into_iter().flatten());
        let naming = rules
            .filter(|rule| rule["resources"].as_array().is_some_and(|all| all.contains(&json!(resource))));
        naming
            .flat_map(|rule| rule["verbs"].as_array().into_iter().flatten())
            .map(|verb| verb.as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let agent = |more: &[&str]| objects("kubesvc-agent", &[MODES[0], more].concat());
    let deploy = agent(&[]);
    assert_eq!(
        verbs_on(&deploy, "deployments"),
        ["get", "list", "watch", "create", "delete", "patch", "update"]
    );
    assert!(!verbs_on(&deploy, "secrets").contains(&"list".to_owned()));
    let view = agent(&[
        "rbac.preset=view",
        "rbac.extraRules[0].apiGroups={stable.example.com}",
        "rbac.extraRules[0].resources={crontabs}",
        "rbac.extraRules[0].verbs={get}",
    ]);
    assert_eq!(verbs_on(&view, "deployments"), ["get", "list", "watch"]);
    assert!(verbs_on(&view, "secrets").is_empty());
    assert_eq!(verbs_on(&view, "crontabs"), ["get"]);
    for mode in &MODES[1..] {
        let none = objects("kubesvc-agent", mode);
        assert_eq!(of_kind(&none, "ClusterRole").count() + of_kind(&none, "ClusterRoleBinding").count(), 0);
        let pod = &only(&none, "StatefulSet")["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false, "no rights, no token");
        let settings = only(&none, "ConfigMap")["data"]["armory-agent.yml"].as_str().unwrap_or_default();
        assert!(settings.contains("serviceAccount: false"), "{settings}");
    }
}

#[test]
fn a_changed_setting_restarts_pods_and_a_changed_account_does_not() {
    let checksum = |values: &[&str]| {
        let objects =
            objects("kubesvc-agent", &[MODES[1], &["kubeconfigs.existingSecret=k"], values].concat());
        only(&objects, "StatefulSet")["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            .clone()
    };
    let account = ["accounts[0].name=b", "accounts[0].kubeconfigFile=/kubeconfigfiles/b"];
    assert!(checksum(&[]).is_string());
    assert_eq!(checksum(&[]), checksum(&account));
    assert_ne!(checksum(&[]), checksum(&["settings.logging.level=debug"]));
}

#[test]
fn an_exposed_hub_is_open_to_listed_networks_only_and_asks_for_approval() {
    let exposed = objects(
        "kubesvc",
        &["expose.type=LoadBalancer", "expose.loadBalancer.sourceRanges={203.0.113.7/32}"],
    );
    let hub =
        of_kind(&exposed, "Service").find(|one| one["spec"]["type"] == "LoadBalancer").expect("a balancer");
    assert_eq!(hub["spec"]["loadBalancerSourceRanges"], json!(["203.0.113.7/32"]));
    let ports: Vec<_> =
        hub["spec"]["ports"].as_array().expect("ports").iter().map(|port| &port["port"]).collect();
    assert_eq!(ports, [9091], "REST is not exposed");
    let policy = only(&exposed, "NetworkPolicy")["spec"]["ingress"].to_string();
    assert!(policy.contains("203.0.113.7/32"), "{policy}");
    let settings = |objects: &[Value]| {
        only(objects, "ConfigMap")["data"]["kubesvc.yml"].as_str().unwrap_or_default().to_owned()
    };
    assert!(settings(&exposed).contains("approval: manual"));
    let gateway = objects("kubesvc", super::BY_GATEWAY);
    let (listener, route) = (&only(&gateway, "Gateway")["spec"]["listeners"][0], only(&gateway, "GRPCRoute"));
    assert_eq!(
        (&listener["protocol"], &listener["tls"]["certificateRefs"][0]["name"]),
        (&json!("HTTPS"), &json!("hub-tls"))
    );
    assert_eq!(route["spec"]["parentRefs"][0]["name"], only(&gateway, "Gateway")["metadata"]["name"]);
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][0]["name"], "kubesvc-operator");
    assert!(settings(&gateway).contains("approval: manual"));
    assert!(!text("kubesvc", &[]).contains("type: LoadBalancer"), "nothing is exposed by default");
}

#[test]
fn two_aliases_in_an_umbrella_chart_are_two_agents() {
    let umbrella = must(Folder::new("umbrella"));
    let dependency = |name: &str, alias: &str| json!({"name": name, "version": VERSION, "alias": alias, "condition": format!("{alias}.enabled")});
    let agent = |zone: &str| json!({"enabled": true, "mode": "infrastructure", "zoneId": zone, "hub": {"address": "hub.example.com:9091"}});
    let long = "agents-of-a-region-whose-name-is-very-long-indeed";
    let (first, second) = (format!("{long}-1"), format!("{long}-2"));
    let dependencies = [
        dependency("kubesvc", "Operator_A"),
        dependency("kubesvc", "absent"),
        dependency("kubesvc-agent", &first),
        dependency("kubesvc-agent", &second),
    ];
    let chart = json!({"apiVersion": "v2", "name": "u", "version": "1.0.0", "dependencies": dependencies});
    let values = json!({
        "Operator_A": {"enabled": true, "crds": {"enabled": false}}, "absent": {"enabled": false},
        first: agent("east"), second: agent("west"),
    });
    must(umbrella.write("Chart.yaml", &chart.to_string()));
    must(umbrella.write("values.yaml", &values.to_string()));
    let charts = umbrella.file("charts");
    must(fs::create_dir(&charts).map_err(|e| e.to_string()));
    for chart in ["charts/kubesvc", "charts/kubesvc-agent"] {
        let copied = Command::new("cp").arg("-r").arg(in_repository(chart)).arg(&charts).status();
        assert!(copied.is_ok_and(|status| status.success()));
    }
    let rendered = helm::run(None, ["template", "r", &umbrella.path().display().to_string()]);
    let objects = super::read(&must(rendered.ok().map_err(|e| format!("the umbrella chart: {e}"))));
    let id = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let mut ids: Vec<_> = objects.iter().map(id).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "each object is rendered once: {ids:?}");
    let sets: Vec<_> = of_kind(&objects, "StatefulSet").collect();
    let [east, west] = sets[..] else { unreachable!("{ids:?}") };
    assert_ne!(east["spec"]["selector"], west["spec"]["selector"]);
    for set in [east, west] {
        assert!(set["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 52), "{set}");
        let labels = &set["spec"]["template"]["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/name"], "kubesvc-agent", "the hub's policy admits them by it");
    }
    assert_eq!(only(&objects, "Deployment")["metadata"]["name"], "r-operator-a-operator");
}
