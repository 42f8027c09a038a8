//go:build tools

// Package node pins what a node with real pods needs besides the control plane: kube-scheduler, kubelet and kube-proxy.
// The cluster's DNS and the pause program are beside it, in dns/ and pause/.
//
// Nothing here is linked into kubesvc. crates/testkit/src/assets.rs builds it and keeps it in a cache folder keyed by
// go.sum.
package node

import (
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
