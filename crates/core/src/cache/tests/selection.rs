//! Which scopes are chosen, and what is left out.

use super::{
    account, cluster, exposed, keys_of, naming, operator_all, operator_named, operator_omitting, reasons_of,
    selected, served, texts,
};
use crate::cache::left_out::{LeftOut, Why};
use crate::cache::object_filter::ObjectFilter;
use crate::cache::rules::MAX_SCOPES;
use crate::cache::rules::{AccountRules, OperatorRuleFields, OperatorRules};
use crate::cache::selection::{ServedKind, select, selects_nothing};
use crate::cache::synthetic::synthetic_objects;
use crate::spec::Scope;

#[test]
fn unset_settings_mean_the_documented_kinds_in_their_home_groups() {
    let selection = select(&cluster(), &OperatorRules::default(), &AccountRules::default());
    assert_eq!(
        keys_of(&selection),
        [":.Service", ":networking.k8s.io.Ingress", ":apps.Deployment", ":.Pod", ":.Namespace"]
    );
    let unserved = "the cluster does not serve it";
    assert_eq!(
        reasons_of(&selection),
        [
            format!("ReplicaSet.apps: {unserved}"),
            format!("DaemonSet.apps: {unserved}"),
            format!("StatefulSet.apps: {unserved}"),
            "Job.batch: it cannot be watched".to_owned(),
            format!("CronJob.batch: {unserved}"),
            format!("NetworkPolicy.networking.k8s.io: {unserved}"),
            format!("CustomResourceDefinition.apiextensions.k8s.io: {unserved}"),
        ]
    );
}

#[test]
fn without_kinds_of_the_operator_nothing_is_selected_and_what_the_account_names_is_reported() {
    let (none, all) = (operator_named(&[], &[]), AccountRules::default());
    assert!(selects_nothing(&none, &all));
    assert!(!selects_nothing(&OperatorRules::default(), &all) && !selects_nothing(&operator_all(), &all));
    let named = naming(&["pod"]);
    assert!(!selects_nothing(&none, &named));
    assert_eq!(
        reasons_of(&select(&cluster(), &none, &named)),
        ["Pod: kubesvc.cache.cacheKinds does not name it"]
    );
    assert!(!selects_nothing(&none, &account(|spec| spec.omit_kinds = texts(&["widget"]))));
}

#[test]
fn an_accounts_kinds_are_taken_in_their_order_from_what_the_operator_allows() {
    let named = naming(&[
        "pod",
        "SERVICE",
        "configMap",
        "rollout",
        "Service.serving.knative.dev",
        "Pod",
        "Widget.a.b",
    ]);
    let all = select(&cluster(), &operator_all(), &named);
    assert_eq!(
        keys_of(&all),
        [":.Pod", ":.Service", ":serving.knative.dev.Service", ":.ConfigMap", ":argoproj.io.Rollout"]
    );
    assert_eq!(reasons_of(&all), ["Widget.a.b: the cluster does not serve it"]);
    let documented = select(&cluster(), &OperatorRules::default(), &named);
    assert_eq!(keys_of(&documented), [":.Pod", ":.Service"]);
    assert_eq!(
        reasons_of(&documented),
        [
            "Service.serving.knative.dev: kubesvc.cache.cacheKinds does not name it",
            "ConfigMap: kubesvc.cache.cacheKinds does not name it",
            "Rollout.argoproj.io: kubesvc.cache.cacheKinds does not name it",
            "Widget.a.b: the cluster does not serve it",
        ]
    );
    assert!(documented.left_out.iter().all(|left_out| !left_out.is_expected()));
}

#[test]
fn a_name_means_every_group_that_has_it() {
    let operator = operator_named(&["service"], &[]);
    assert_eq!(selected(&operator, &AccountRules::default()), [":.Service", ":serving.knative.dev.Service"]);
    let operator = operator_named(&["service"], &["Service.serving.knative.dev"]);
    assert_eq!(selected(&operator, &AccountRules::default()), [":.Service"]);
}

#[test]
fn omitted_kinds_are_left_out_with_the_setting() {
    let account = account(|spec| spec.omit_kinds = texts(&["pod", "Service.other.group", "CronJob"]));
    let selection = select(&cluster(), &operator_omitting(&["ingress"]), &account);
    assert_eq!(keys_of(&selection), [":.Service", ":apps.Deployment", ":.Namespace"]);
    let reasons = reasons_of(&selection);
    for expected in
        ["Pod: omitKinds names it", "Ingress.networking.k8s.io: kubesvc.cache.cacheOmitKinds names it"]
    {
        assert!(reasons.iter().any(|reason| reason == expected), "{expected} in {reasons:?}");
    }
    assert!(!reasons.iter().any(|reason| reason.starts_with("CronJob")), "nobody wants it: {reasons:?}");
}

#[test]
fn kinds_that_an_account_names_and_a_list_omits_are_told() {
    let told = |kinds: &[&str], omitted: &[&str]| -> Vec<String> {
        let omitted = texts(omitted);
        let settings = OperatorRuleFields {
            cache_all: true,
            cache_omit_kinds: &omitted,
            ..OperatorRuleFields::default()
        };
        let selection = select(&cluster(), &OperatorRules::read(&settings).0, &naming(kinds));
        let told = selection.left_out.iter().filter(|left_out| !left_out.is_expected());
        told.map(ToString::to_string).collect()
    };
    let omitted = |kind: &str| format!("{kind}: kinds names it, and kubesvc.cache.cacheOmitKinds omits it");
    let both = told(&["pod", "ConfigMap", "Rollout.argoproj.io"], &["Pod", "rollout"]);
    assert_eq!(both, [omitted("Pod"), omitted("Rollout.argoproj.io")]);
    assert_eq!(told(&["rollout"], &["Rollout.argoproj.io"]), [omitted("Rollout.argoproj.io")]);
    assert_eq!(told(&["event"], &["Event."]), [omitted("Event")], "the other group has the same objects");
    let knative = "Service.serving.knative.dev";
    assert_eq!(told(&["service"], &[knative]), [""; 0], "another group's is cached");
    assert_eq!(told(&["service", knative], &[knative]), [omitted(knative)]);
    let own = account(|spec| {
        spec.kinds = texts(&["pod", "service"]);
        spec.omit_kinds = texts(&["pod"]);
    });
    let selection = select(&cluster(), &operator_all(), &own);
    assert_eq!(reasons_of(&selection), ["Pod: kinds names it, and omitKinds omits it"]);
    assert!(selection.left_out.iter().all(|left_out| !left_out.is_expected()));
}

#[test]
fn names_of_an_account_that_omit_nothing_are_told_unless_they_are_native_kinds() {
    let names = [
        "Rolout.argoproj.io",
        "rollout",
        "widget",
        "CronJob",
        "Deployment.extensions",
        "podPreset.settings.k8s.io",
        "Pod.apps",
        "sa",
    ];
    let omitting = account(|spec| spec.omit_kinds = texts(&names));
    let selection = select(&cluster(), &operator_all(), &omitting);
    let told: Vec<_> = selection.left_out.iter().filter(|left_out| !left_out.is_expected()).collect();
    let why = "omitKinds names it, but the cluster serves no such kind: it omits nothing";
    let expected = ["Rolout.argoproj.io", "widget", "Pod.apps"].map(|name| format!("{name}: {why}"));
    assert_eq!(told.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    assert!(selection.left_out.ends_with(&told.into_iter().cloned().collect::<Vec<_>>()), "they come last");
}

#[test]
fn what_the_operator_omits_in_all_clusters_is_not_told_of_one_that_lacks_it() {
    let operator = operator_omitting(&["Rolout.argoproj.io", "widget", "Pod.apps"]);
    let selection = select(&cluster(), &operator, &AccountRules::default());
    let reasons = reasons_of(&selection);
    assert!(!reasons.iter().any(|reason| reason.contains("omit")), "{reasons:?}");
}

#[test]
fn everything_means_every_kind_that_can_be_listed_and_watched() {
    let selection = select(&cluster(), &operator_all(), &AccountRules::default());
    assert_eq!(
        keys_of(&selection),
        [
            ":.Service",
            ":networking.k8s.io.Ingress",
            ":apps.Deployment",
            ":.Pod",
            ":.Namespace",
            ":.ConfigMap",
            ":.Event",
            ":serving.knative.dev.Service",
            ":argoproj.io.Rollout",
            ":cert-manager.io.Issuer"
        ]
    );
    assert_eq!(
        reasons_of(&selection),
        [
            "Job.batch: it cannot be watched",
            "ComponentStatus: it cannot be watched",
            "TokenReview.authentication.k8s.io: it can be neither listed nor watched"
        ]
    );
    assert!(selection.left_out.iter().all(LeftOut::is_expected), "no one asked for these by name");
}

#[test]
fn objects_that_two_native_groups_serve_are_watched_once() {
    assert_eq!(
        selected(&operator_named(&["event", "ingress"], &[]), &AccountRules::default()),
        [":.Event", ":networking.k8s.io.Ingress"]
    );
    let selection =
        select(&cluster(), &operator_all(), &naming(&["Event.events.k8s.io", "Ingress.networking.k8s.io"]));
    assert_eq!(keys_of(&selection), [":networking.k8s.io.Ingress"]);
    assert_eq!(
        reasons_of(&selection),
        ["Event.events.k8s.io: its objects are cached as Event; name Event instead"]
    );
}

#[test]
fn an_old_cluster_has_its_native_kinds_at_the_group_that_serves_them() {
    let old = [served("Ingress.extensions", true, "list watch")];
    let selection = select(&old, &OperatorRules::default(), &AccountRules::default());
    assert_eq!(keys_of(&selection), [":extensions.Ingress"]);
    assert!(!reasons_of(&selection).iter().any(|reason| reason.starts_with("Ingress")));
}

#[test]
fn namespaces_are_one_scope_each_and_what_is_cluster_wide_is_whole() {
    let operator = operator_named(&["Pod", "Namespace", "Issuer"], &[]);
    let some = account(|spec| spec.namespaces = texts(&["b", "a"]));
    assert_eq!(selected(&operator, &some), ["b:.Pod", "a:.Pod", ":.Namespace", ":cert-manager.io.Issuer"]);
    let only = account(|spec| {
        spec.namespaces = texts(&["b", "a"]);
        spec.only_namespaced_resources = Some(true);
    });
    let selection = select(&cluster(), &operator, &only);
    assert_eq!(keys_of(&selection), ["b:.Pod", "a:.Pod"]);
    assert_eq!(
        reasons_of(&selection),
        [
            "Namespace: it is cluster-wide, and onlyNamespacedResources is set",
            "Issuer.cert-manager.io: it is cluster-wide, and onlyNamespacedResources is set"
        ]
    );
}

#[test]
fn cluster_wide_kinds_that_an_account_of_namespaces_alone_names_are_told() {
    let told = |kinds: &[&str]| -> Vec<String> {
        let only = account(|spec| {
            spec.namespaces = texts(&["a"]);
            spec.only_namespaced_resources = Some(true);
            spec.kinds = texts(kinds);
        });
        let served = [cluster(), vec![served("Issuer.example.com", true, "list watch")]].concat();
        let selection = select(&served, &operator_all(), &only);
        let told = selection.left_out.iter().filter(|left_out| !left_out.is_expected());
        told.map(ToString::to_string).collect()
    };
    let issuer =
        "Issuer.cert-manager.io: kinds names it, but it is cluster-wide, and onlyNamespacedResources is set";
    assert_eq!(told(&["pod", "Issuer.cert-manager.io"]), [issuer]);
    assert_eq!(told(&["pod", "issuer"]), [""; 0], "that of another group is in namespaces");
    assert_eq!(told(&["namespace"]), [""; 0], "the namespaces themselves have rows");
    assert_eq!(told(&[]), [""; 0], "nobody asks for it");
}

#[test]
fn a_kind_for_which_there_is_no_room_is_left_out_with_what_to_do() {
    let custom = (0..300).map(|i| served(&format!("Kind{i}.example.com"), true, "list watch"));
    let kinds: Vec<ServedKind> = custom.chain([served("Node", false, "list watch")]).collect();
    let account = account(|spec| spec.namespaces = (0..50).map(|i| format!("ns-{i}")).collect());
    let selection = select(&kinds, &operator_all(), &account);
    // 99 kinds in 50 namespaces, and the cluster-wide one.
    assert_eq!(selection.scopes.len(), 4951);
    assert!(selection.scopes.len() <= MAX_SCOPES);
    assert_eq!(selection.scopes.last().map(|scope| scope.scope.kind.as_str()), Some("Node"));
    assert_eq!(selection.left_out.len(), 201);
    assert_eq!(
        selection.left_out[0].to_string(),
        "Kind99.example.com: it takes 50 more watches, and an account has at most 5000: name fewer kinds or \
         namespaces, or give the account rights on the whole cluster and set omitNamespaces in place of namespaces"
    );
    assert!(selection.left_out.iter().all(|left_out| !left_out.is_expected()));
}

#[test]
fn synthetic_scopes_have_room_beside_as_many_watches_as_fit() {
    let kinds: Vec<ServedKind> =
        (0..100).map(|i| served(&format!("Kind{i}.example.com"), true, "list watch")).collect();
    let namespaces: Vec<_> = (0..50).map(|i| format!("ns-{i}")).collect();
    let full = account(|spec| {
        spec.namespaces.clone_from(&namespaces);
        spec.only_namespaced_resources = Some(true);
        spec.custom_resource_definitions = vec![exposed("Issuer.cert-manager.io", None)];
    });
    let selection = select(&kinds, &operator_all(), &full);
    let synthetic = synthetic_objects(&kinds, &operator_all(), &full);
    assert_eq!((selection.scopes.len(), synthetic.len()), (4950, 2));
    assert_eq!(reasons_of(&selection).len(), 1, "the kind for which there is no room is named");
    // Who does not cache either kind has all the room.
    let omits_both = account(|spec| {
        spec.namespaces.clone_from(&namespaces);
        spec.only_namespaced_resources = Some(true);
        spec.omit_kinds = texts(&["Namespace", "CustomResourceDefinition"]);
    });
    assert_eq!(select(&kinds, &operator_all(), &omits_both).scopes.len(), MAX_SCOPES);
}

#[test]
fn no_namespace_that_counts_means_no_scope() {
    let account = account(|spec| spec.namespaces = texts(&["Not-One"]));
    let selection = select(&cluster(), &operator_named(&["Pod"], &[]), &account);
    assert!(selection.scopes.is_empty());
    assert_eq!(reasons_of(&selection), ["Pod: namespaces leaves no namespace to watch"]);
}

#[test]
fn of_two_resources_of_one_kind_the_one_that_can_be_watched_counts() {
    let mut processed = served("Template.template.openshift.io", true, "create");
    processed.plural = "processedtemplates".to_owned();
    let kinds = [processed, served("Template.template.openshift.io", true, "list watch")];
    let selection = select(&kinds, &operator_named(&["template"], &[]), &AccountRules::default());
    assert_eq!(selection.scopes[0].scope.plural, "templates");
    assert_eq!((selection.scopes.len(), selection.left_out.len()), (1, 0));
}

#[test]
fn kinds_with_impossible_names_are_left_out() {
    let mut hostile = served("Pod.example.com", true, "list watch");
    hostile.plural = "../../secrets".to_owned();
    let mut long = served("Job.example.com", true, "list watch");
    long.group = "x".repeat(300);
    let nul = served("Pod\0.example.com", true, "list watch");
    let selection = select(&[hostile, long, nul], &operator_all(), &AccountRules::default());
    assert!(selection.scopes.is_empty());
    assert!(selection.left_out.iter().all(|left_out| left_out.why == Why::InvalidName), "{selection:?}");
}

#[test]
fn omitted_namespaces_are_filtered_only_where_all_are_watched() {
    let account = account(|spec| {
        spec.omit_namespaces = texts(&["kube-system"]);
        spec.only_spinnaker_managed = Some(true);
    });
    let selection = select(&cluster(), &operator_named(&["Pod", "Namespace"], &[]), &account);
    let [pods, namespaces] = &selection.scopes[..] else { unreachable!("{selection:?}") };
    let (pods, namespaces) = (ObjectFilter::of(&account, pods), ObjectFilter::of(&account, namespaces));
    let managed = |key: &str| (key == "moniker.spinnaker.io/application").then_some("app");
    assert_eq!(pods.leaves_out("default", managed), None);
    assert_eq!(
        pods.leaves_out("kube-system", managed),
        Some(Why::OmittedNamespace("kube-system".to_owned()))
    );
    assert_eq!(namespaces.leaves_out("", managed), None);
    assert_eq!(pods.leaves_out("default", |_| None), Some(Why::NotManaged));
    assert_eq!(pods.leaves_out("default", |_| Some("")), Some(Why::NotManaged));
    assert_eq!(pods.leaves_out("default", |_| Some("\"true\"")), Some(Why::Ignored));
    assert_ne!(pods.digest(), namespaces.digest());
}

#[test]
fn a_cluster_that_is_not_read_as_a_whole_has_synthetic_namespaces_and_definitions() {
    let account = account(|spec| {
        spec.namespaces = texts(&["b", "a"]);
        spec.only_namespaced_resources = Some(true);
        spec.custom_resource_definitions =
            vec![exposed("rollout.argoproj.io", None), exposed("Widget.example.com", Some(Scope::Cluster))];
    });
    let scopes = synthetic_objects(&cluster(), &OperatorRules::default(), &account);
    let [namespaces, definitions] = &scopes[..] else { unreachable!("{scopes:?}") };
    assert_eq!(namespaces.scope.key().to_string(), ":.Namespace");
    assert_eq!(
        namespaces.objects[0].body,
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"b"}}"#
    );
    assert_eq!(definitions.scope.key().to_string(), ":apiextensions.k8s.io.CustomResourceDefinition");
    let bodies: Vec<_> = definitions.objects.iter().map(|object| object.body.as_str()).collect();
    assert_eq!(
        bodies,
        [
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"rollouts.argoproj.io"},"spec":{"group":"argoproj.io","names":{"kind":"Rollout","plural":"rollouts"},"scope":"Namespaced"}}"#,
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","names":{"kind":"Widget","plural":"widgets"},"scope":"Cluster"}}"#,
        ]
    );
    assert_eq!(definitions.objects[1].name, "widgets.example.com");
    let omitted = synthetic_objects(&cluster(), &operator_named(&["Pod"], &[]), &account);
    assert!(omitted.is_empty(), "the operator caches neither kind");
    assert!(synthetic_objects(&cluster(), &OperatorRules::default(), &AccountRules::default()).is_empty());
}
