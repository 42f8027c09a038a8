//! Random manifests of what users deploy, and what others change of the objects in between.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// API group of the custom kind.
pub(super) const CUSTOM_GROUP: &str = "programs.kubesvc.test";

/// A definition of a custom kind whose lists the API server knows nothing of, with a scale subresource.
pub(super) fn custom_definition(plural: &str, kind: &str) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{CUSTOM_GROUP}")},
        "spec": {
            "group": CUSTOM_GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
            }],
        },
    })
}

/// What is deployed: a kind, and whether its objects are in namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deployable {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) namespaced: bool,
    make: fn(&mut Rng) -> Value,
}

impl Deployable {
    /// A random manifest. `prefix` makes names of cluster-wide objects differ.
    pub(super) fn manifest(&self, prefix: &str, random: &mut Rng) -> Value {
        let mut object = (self.make)(random);
        object["apiVersion"] = self.api_version.into();
        object["kind"] = self.kind.into();
        let mut metadata = json!({ "name": self.name(prefix) });
        if self.namespaced {
            metadata["namespace"] = prefix.into();
        }
        some(&mut metadata, "labels", random, |random| texts(&["app", "team", "tier"], random));
        some(&mut metadata, "annotations", random, |random| texts(&["note", "example.com/x"], random));
        some(&mut metadata, "finalizers", random, |random| {
            subset(&["example.com/a", "example.com/b", "example.com/c"], random).into()
        });
        object["metadata"] = metadata;
        object
    }

    pub(super) fn name(&self, prefix: &str) -> String {
        if self.namespaced { "twin".to_owned() } else { format!("{prefix}-twin") }
    }

    /// Path of the object.
    pub(super) fn path(&self, prefix: &str) -> String {
        let base = if self.api_version.contains('/') { "apis" } else { "api" };
        let namespace = if self.namespaced { format!("/namespaces/{prefix}") } else { String::new() };
        format!("/{base}/{}{namespace}/{}/{}", self.api_version, self.plural, self.name(prefix))
    }

    /// A change that somebody else makes: media type and body.
    pub(super) fn change_of_others(&self, random: &mut Rng) -> (&'static str, Value) {
        let metadata = [
            json!({"metadata": {"labels": {"other": word(random)}}}),
            json!({"metadata": {"labels": {"app": "taken", "team": null}}}),
            json!({"metadata": {"annotations": {"other": word(random), "note": "taken"}}}),
        ];
        let custom = self.api_version.contains(CUSTOM_GROUP);
        if custom {
            let body = match random.u8(0..4) {
                0 => json!({"spec": {"other": word(random)}}),
                1 => json!({"spec": {"items": [{"name": "others"}], "replicas": random.u8(0..5)}}),
                2 => json!({"spec": {"map": {"a": null, "other": {"deep": 1}}}}),
                _ => metadata[random.usize(0..3)].clone(),
            };
            return ("application/merge-patch+json", body);
        }
        let body = match self.kind {
            "Deployment" | "StatefulSet" | "DaemonSet" if random.bool() => template_change(random),
            "Deployment" | "StatefulSet" if random.bool() => json!({"spec": {"replicas": random.u8(0..5)}}),
            "CronJob" if random.bool() => {
                json!({"spec": {"suspend": true, "jobTemplate": {"spec": template_change(random)["spec"]}}})
            }
            "Service" if random.bool() => {
                json!({"spec": {"ports": [{"name": "other", "port": 9999}], "sessionAffinity": "ClientIP"}})
            }
            "ConfigMap" if random.bool() => json!({"data": {"a": "taken", "other": word(random)}}),
            "ServiceAccount" if random.bool() => json!({"secrets": [{"name": "others"}]}),
            "Ingress" if random.bool() => json!({"spec": {"ingressClassName": word(random)}}),
            "PodDisruptionBudget" if random.bool() => {
                json!({"spec": {"selector": {"matchLabels": {"other": "x"}}}})
            }
            "MutatingWebhookConfiguration" if random.bool() => {
                json!({"webhooks": [{"name": "a.example.com", "timeoutSeconds": 7, "matchPolicy": "Exact"}]})
            }
            _ => metadata[random.usize(0..3)].clone(),
        };
        ("application/strategic-merge-patch+json", body)
    }
}

/// What others do to the template of pods: a sidecar comes, a variable, a volume; an image changes, a variable goes.
fn template_change(random: &mut Rng) -> Value {
    let spec = match random.u8(0..6) {
        0 => json!({"containers": [{"name": "injected", "image": "i"}]}),
        1 => json!({"containers": [{"name": "app", "env": [{"name": "OTHER", "value": word(random)}]}]}),
        2 => json!({"volumes": [{"name": "injected", "emptyDir": {}}]}),
        3 => json!({"containers": [{"name": "app", "image": "taken", "ports": [{"containerPort": 7777}]}]}),
        4 => json!({"containers": [{"name": "app", "env": [{"name": "A", "$patch": "delete"}]}]}),
        _ => {
            json!({"tolerations": [{"key": "other", "operator": "Exists"}], "initContainers": [{"name": "injected", "image": "i"}]})
        }
    };
    json!({"spec": {"template": {"spec": spec}}})
}

pub(super) const DEPLOYABLES: [Deployable; 16] = [
    Deployable {
        api_version: "apps/v1",
        kind: "Deployment",
        plural: "deployments",
        namespaced: true,
        make: deployment,
    },
    Deployable {
        api_version: "apps/v1",
        kind: "StatefulSet",
        plural: "statefulsets",
        namespaced: true,
        make: stateful_set,
    },
    Deployable {
        api_version: "apps/v1",
        kind: "DaemonSet",
        plural: "daemonsets",
        namespaced: true,
        make: daemon_set,
    },
    Deployable { api_version: "batch/v1", kind: "Job", plural: "jobs", namespaced: true, make: job },
    Deployable {
        api_version: "batch/v1",
        kind: "CronJob",
        plural: "cronjobs",
        namespaced: true,
        make: cron_job,
    },
    Deployable { api_version: "v1", kind: "Service", plural: "services", namespaced: true, make: service },
    Deployable {
        api_version: "networking.k8s.io/v1",
        kind: "Ingress",
        plural: "ingresses",
        namespaced: true,
        make: ingress,
    },
    Deployable {
        api_version: "v1",
        kind: "ConfigMap",
        plural: "configmaps",
        namespaced: true,
        make: config_map,
    },
    Deployable {
        api_version: "v1",
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        namespaced: true,
        make: service_account,
    },
    Deployable {
        api_version: "policy/v1",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        namespaced: true,
        make: budget,
    },
    Deployable {
        api_version: "autoscaling/v2",
        kind: "HorizontalPodAutoscaler",
        plural: "horizontalpodautoscalers",
        namespaced: true,
        make: autoscaler,
    },
    Deployable {
        api_version: "rbac.authorization.k8s.io/v1",
        kind: "Role",
        plural: "roles",
        namespaced: true,
        make: role,
    },
    Deployable {
        api_version: "rbac.authorization.k8s.io/v1",
        kind: "ClusterRole",
        plural: "clusterroles",
        namespaced: false,
        make: role,
    },
    Deployable {
        api_version: "admissionregistration.k8s.io/v1",
        kind: "MutatingWebhookConfiguration",
        plural: "mutatingwebhookconfigurations",
        namespaced: false,
        make: webhooks,
    },
    Deployable {
        api_version: "v1",
        kind: "Namespace",
        plural: "namespaces",
        namespaced: false,
        make: |_| json!({}),
    },
    Deployable {
        api_version: "programs.kubesvc.test/v1",
        kind: "Gadget",
        plural: "gadgets",
        namespaced: true,
        make: gadget,
    },
];

/// A text that can stand in a name.
fn word(random: &mut Rng) -> String {
    random.u8(0..4).to_string()
}

/// A text of any characters.
fn text(random: &mut Rng) -> String {
    ["0", "1", "<&>\u{2028}", "\u{e9}\n\t\u{7f}"][random.usize(0..4)].to_owned()
}

/// Some of these, in any order.
fn subset(of: &[&str], random: &mut Rng) -> Vec<String> {
    let mut chosen: Vec<String> =
        of.iter().filter(|_| random.bool()).map(|text| (*text).to_owned()).collect();
    random.shuffle(&mut chosen);
    chosen
}

/// Items of a list, one for each of some of these names, in any order.
fn each(names: &[&str], random: &mut Rng, make: impl Fn(&str, &mut Rng) -> Value) -> Vec<Value> {
    let chosen = subset(names, random);
    chosen.iter().map(|name| make(name, random)).collect()
}

fn texts(names: &[&str], random: &mut Rng) -> Value {
    subset(names, random).into_iter().map(|name| (name, word(random).into())).collect::<Map<_, _>>().into()
}

/// Adds a field in two of three cases.
fn some(to: &mut Value, field: &str, random: &mut Rng, make: fn(&mut Rng) -> Value) {
    if random.u8(0..3) > 0 {
        to[field] = make(random);
    }
}

/// Items of a list that have a name, in any order.
fn named(names: &[&str], random: &mut Rng, make: fn(&mut Rng) -> Value) -> Value {
    let item = |name: &str, random: &mut Rng| {
        let mut item = make(random);
        item["name"] = name.into();
        item
    };
    each(names, random, item).into()
}

fn environment(random: &mut Rng) -> Value {
    named(&["A", "B", "C", "D"], random, |random| match random.u8(0..3) {
        0 => json!({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        1 => json!({"valueFrom": {"configMapKeyRef": {"name": "c", "key": word(random)}}}),
        _ => json!({ "value": text(random) }),
    })
}

fn container(name: &str, random: &mut Rng) -> Value {
    let mut container = json!({"name": name, "image": format!("i:{}", word(random))});
    some(&mut container, "env", random, environment);
    some(&mut container, "ports", random, |random| {
        let port = |port: &str, random: &mut Rng| {
            let number: u16 = port.parse().unwrap_or_default();
            let mut one = json!({"containerPort": number});
            some(&mut one, "name", random, |random| format!("p{}", random.u32(..)).into());
            some(&mut one, "protocol", random, |random| (if random.bool() { "TCP" } else { "UDP" }).into());
            one
        };
        each(&["80", "81", "9090"], random, port).into()
    });
    some(&mut container, "volumeMounts", random, |random| {
        let volume = |random: &mut Rng| if random.bool() { "v" } else { "w" };
        let mount = |path: &str, random: &mut Rng| json!({"mountPath": path, "name": volume(random)});
        each(&["/a", "/b", "/c"], random, mount).into()
    });
    some(&mut container, "args", random, |random| subset(&["-x", "-y", "<&>"], random).into());
    some(&mut container, "resources", random, |random| {
        let quantity = ["500m", "0.5", "1", "1000m"][random.usize(0..4)];
        json!({"requests": {"cpu": quantity, "memory": "64Mi"}})
    });
    some(&mut container, "livenessProbe", random, |random| match random.bool() {
        true => json!({"httpGet": {"path": "/", "port": 80}}),
        false => json!({"exec": {"command": ["true"]}, "periodSeconds": 3}),
    });
    container
}

fn volume(name: &str, random: &mut Rng) -> Value {
    match random.u8(0..4) {
        0 => json!({"name": name, "configMap": {"name": "c"}}),
        1 => json!({"name": name, "secret": {"secretName": "s"}}),
        2 => json!({"name": name, "projected": {"sources": [{"configMap": {"name": word(random)}}]}}),
        _ => json!({"name": name, "emptyDir": {}}),
    }
}

fn template(random: &mut Rng) -> Value {
    let mut volumes: Vec<Value> = ["v", "w"].iter().map(|name| volume(name, random)).collect();
    volumes.extend(each(&["u"], random, volume));
    let mut containers = vec![container("app", random)];
    for name in subset(&["sidecar", "proxy"], random) {
        let at = random.usize(0..=containers.len());
        containers.insert(at, container(&name, random));
    }
    // A mount of a volume that is not there is refused.
    let volumes = if random.u8(0..10) == 0 { Vec::new() } else { volumes };
    let mut spec = json!({"containers": containers, "volumes": volumes});
    some(&mut spec, "initContainers", random, |random| {
        named(&["first", "second"], random, |random| json!({"image": word(random)}))
    });
    some(&mut spec, "imagePullSecrets", random, |random| named(&["x", "y"], random, |_| json!({})));
    some(&mut spec, "hostAliases", random, |random| {
        let alias = |ip: String| json!({"ip": ip, "hostnames": ["a", "b"]});
        subset(&["10.0.0.1", "10.0.0.2"], random).into_iter().map(alias).collect()
    });
    some(&mut spec, "tolerations", random, |random| json!([{"key": word(random), "operator": "Exists"}]));
    some(&mut spec, "nodeSelector", random, |random| texts(&["disk", "zone"], random));
    some(&mut spec, "topologySpreadConstraints", random, |random| {
        let spread = |key: String| {
            json!({
                "topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "twin"}},
            })
        };
        subset(&["zone", "host"], random).into_iter().map(spread).collect()
    });
    some(&mut spec, "terminationGracePeriodSeconds", random, |random| random.u8(1..5).into());
    some(&mut spec, "securityContext", random, |random| json!({"runAsUser": random.u16(1..5)}));
    let mut metadata = json!({"labels": {"app": "twin"}});
    some(&mut metadata, "annotations", random, |random| texts(&["a", "b"], random));
    json!({"metadata": metadata, "spec": spec})
}

fn workload(random: &mut Rng) -> Value {
    json!({"spec": {"selector": {"matchLabels": {"app": "twin"}}, "template": template(random)}})
}

fn deployment(random: &mut Rng) -> Value {
    let mut object = workload(random);
    some(&mut object["spec"], "replicas", random, |random| random.u8(0..5).into());
    some(&mut object["spec"], "strategy", random, |random| match random.u8(0..4) {
        0 => json!({"type": "Recreate"}),
        1 => json!({"type": "RollingUpdate"}),
        2 => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2}}),
        // Refused.
        _ if random.u8(0..4) == 0 => json!({"type": "Recreate", "rollingUpdate": {"maxSurge": 2}}),
        _ => json!({"rollingUpdate": {"maxUnavailable": "50%"}}),
    });
    some(&mut object["spec"], "minReadySeconds", random, |random| random.u8(0..3).into());
    object
}

fn stateful_set(random: &mut Rng) -> Value {
    let mut object = workload(random);
    // Another name of the service is refused.
    object["spec"]["serviceName"] = (if random.u8(0..8) == 0 { "other" } else { "twin" }).into();
    some(&mut object["spec"], "replicas", random, |random| random.u8(0..5).into());
    some(&mut object["spec"], "updateStrategy", random, |random| match random.bool() {
        true => json!({"type": "OnDelete"}),
        false => json!({"type": "RollingUpdate", "rollingUpdate": {"partition": random.u8(0..3)}}),
    });
    object
}

fn daemon_set(random: &mut Rng) -> Value {
    let mut object = workload(random);
    some(&mut object["spec"], "updateStrategy", random, |random| match random.bool() {
        true => json!({"type": "OnDelete"}),
        false => json!({"rollingUpdate": {"maxUnavailable": random.u8(1..3)}}),
    });
    object
}

fn job(random: &mut Rng) -> Value {
    let mut pod = json!({"containers": [{"name": "app", "image": "i"}], "restartPolicy": "Never"});
    if random.u8(0..4) == 0 {
        // The template of a Job cannot change.
        pod["containers"][0]["image"] = "other".into();
    }
    // By default it depends on the parallelism, and it cannot change.
    let mut spec = json!({"template": {"spec": pod}, "completions": 3});
    some(&mut spec, "parallelism", random, |random| random.u8(0..4).into());
    some(&mut spec, "activeDeadlineSeconds", random, |random| random.u8(1..4).into());
    json!({ "spec": spec })
}

fn cron_job(random: &mut Rng) -> Value {
    let mut pod = template(random);
    pod["spec"]["restartPolicy"] = (if random.bool() { "Never" } else { "OnFailure" }).into();
    let schedule =
        ["* * * * *", "0 0 * * 0", "nonsense"][if random.u8(0..8) == 0 { 2 } else { random.usize(0..2) }];
    json!({"spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": pod}}}})
}

fn service(random: &mut Rng) -> Value {
    let port = |number: &str, random: &mut Rng| {
        let port: u16 = number.parse().unwrap_or_default();
        let mut one = json!({"port": port, "name": format!("p{number}")});
        some(&mut one, "targetPort", random, |random| random.u8(1..9).into());
        one
    };
    let ports = each(&["80", "443", "9090"], random, port);
    let mut spec = json!({ "ports": ports });
    some(&mut spec, "selector", random, |random| texts(&["app", "tier"], random));
    some(&mut spec, "type", random, |random| (if random.bool() { "ClusterIP" } else { "NodePort" }).into());
    json!({ "spec": spec })
}

fn ingress(random: &mut Rng) -> Value {
    let rule = |host: &str, random: &mut Rng| {
        let backend = json!({"service": {"name": "twin", "port": {"number": random.u16(1..4)}}});
        json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}})
    };
    let rules = each(&["a.example.com", "b.example.com"], random, rule);
    let default = json!({"service": {"name": "default", "port": {"number": 80}}});
    let mut spec = json!({"rules": rules, "defaultBackend": default});
    some(
        &mut spec,
        "tls",
        random,
        |random| json!([{"hosts": subset(&["a.example.com", "c"], random), "secretName": "s"}]),
    );
    json!({ "spec": spec })
}

fn config_map(random: &mut Rng) -> Value {
    let mut object = json!({"data": texts(&["a", "b", "c\u{e9}"], random)});
    some(&mut object, "binaryData", random, |_| json!({"bin": "AAEC"}));
    some(&mut object, "data", random, |random| texts(&["a", "b", "file.json"], random));
    object
}

fn service_account(random: &mut Rng) -> Value {
    json!({
        "secrets": named(&["x", "y", "z"], random, |_| json!({})),
        "imagePullSecrets": named(&["x", "y"], random, |_| json!({})),
    })
}

fn budget(random: &mut Rng) -> Value {
    let selector = match random.bool() {
        true => json!({"matchLabels": texts(&["app", "tier"], random)}),
        false => json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
    };
    let bound = if random.bool() { "minAvailable" } else { "maxUnavailable" };
    let mut spec = json!({ "selector": selector });
    spec[bound] = random.u8(0..3).into();
    json!({ "spec": spec })
}

fn autoscaler(random: &mut Rng) -> Value {
    let metric = |name: &str, random: &mut Rng| {
        let target = json!({"type": "Utilization", "averageUtilization": random.u8(1..5)});
        json!({"type": "Resource", "resource": {"name": name, "target": target}})
    };
    let metrics = each(&["cpu", "memory"], random, metric);
    let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "twin"});
    let mut spec = json!({"scaleTargetRef": reference, "maxReplicas": random.u8(3..6), "metrics": metrics});
    some(&mut spec, "minReplicas", random, |random| random.u8(1..4).into());
    json!({ "spec": spec })
}

fn role(random: &mut Rng) -> Value {
    let rule = |resource: String| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
    json!({"rules": subset(&["pods", "services", "configmaps"], random).into_iter().map(rule).collect::<Vec<_>>()})
}

fn webhooks(random: &mut Rng) -> Value {
    let webhooks = named(&["a.example.com", "b.example.com", "c.example.com"], random, |random| {
        let mut webhook = json!({
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "rules": [{"apiGroups": ["nothing.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}],
        });
        some(&mut webhook, "failurePolicy", random, |random| {
            (if random.bool() { "Ignore" } else { "Fail" }).into()
        });
        webhook
    });
    json!({ "webhooks": webhooks })
}

fn gadget(random: &mut Rng) -> Value {
    let mut spec =
        json!({"items": named(&["a", "b", "c"], random, |random| json!({"size": random.u8(0..3)}))});
    some(
        &mut spec,
        "map",
        random,
        |random| json!({"a": word(random), "deep": {"always": word(random), "x": word(random)}}),
    );
    some(&mut spec, "replicas", random, |random| random.u8(0..5).into());
    some(&mut spec, "number", random, |random| json!(f64::from(random.u8(0..5)) / 2.0));
    some(&mut spec, "words", random, |random| subset(&["one", "two", "three"], random).into());
    json!({ "spec": spec })
}
