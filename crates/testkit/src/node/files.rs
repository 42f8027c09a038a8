//! Settings and command lines of a node's programs.

use std::path::Path;

use super::{NAME, Place, SOCKET};
use crate::folder::Folder;

/// Image of the program that holds a pod's namespaces.
pub(super) const PAUSE_IMAGE: &str = "kubesvc.test/pause:1";
/// Addresses of pods.
const PODS: &str = "10.244.0.0/24";

/// Writes the settings of containerd, its network plugins and the kubelet.
pub(super) fn write(folder: &Folder, place: &Place) -> Result<(), String> {
    let path = |name: &str| folder.file(name).display().to_string();
    folder.write("containerd.toml", &containerd(&path("containerd"), &path("cni")))?;
    std::fs::create_dir(folder.file("cni")).map_err(|e| format!("{}: {e}", path("cni")))?;
    folder.write("cni/10-pods.conflist", &network(&path("addresses")))?;
    folder.write("resolv.conf", "")?;
    folder.write("kubelet.yaml", &kubelet(folder, place)).map(drop)
}

fn containerd(root: &str, networks: &str) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
# To lower a score takes a capability that root lacks in some machines.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{networks}"
"#
    )
}

fn network(addresses: &str) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "pods", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "dataDir": addresses, "ranges": [[{"subnet": PODS}]]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
    .to_string()
}

fn kubelet(folder: &Folder, place: &Place) -> String {
    let path = |name: &str| folder.file(name).display().to_string();
    serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // Control groups of version 1 are deprecated, and those of some machines.
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", place.cgroup),
        "clusterDNS": [place.address.to_string()],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "resolvConf": path("resolv.conf"),
        "podLogsDir": path("pod-logs"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": path("ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        // The machine is that of the developer: nothing is evicted or removed for its sake.
        "localStorageCapacityIsolation": false,
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi", "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Each version of a Secret or ConfigMap arrives in pods within seconds.
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
    })
    .to_string()
}

pub(super) fn kubelet_flags(folder: &Folder, kubeconfig: &Path, place: &Place) -> Vec<String> {
    let path = |name: &str| folder.file(name).display().to_string();
    vec![
        format!("--config={}", path("kubelet.yaml")),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", path("kubelet")),
        format!("--cert-dir={}", path("kubelet-certificates")),
        format!("--node-ip={}", place.address),
        format!("--hostname-override={NAME}"),
    ]
}

pub(super) fn scheduler_flags(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ]
}

pub(super) fn proxy_flags(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={NAME}"),
        format!("--cluster-cidr={PODS}"),
        "--proxy-mode=iptables".into(),
        // These settings belong to the whole machine.
        "--conntrack-max-per-core=0".into(),
        "--conntrack-min=0".into(),
        "--conntrack-tcp-timeout-established=0s".into(),
        "--conntrack-tcp-timeout-close-wait=0s".into(),
    ]
}

pub(super) fn dns_flags(kubeconfig: &Path, place: &Place) -> Vec<String> {
    vec![format!("--kubeconfig={}", kubeconfig.display()), format!("--listen={}:53", place.address)]
}
